// Messages: what two ends of an rsocket connection tell each other.
//
// An end writes into memory of the other: bytes into its receive buffers, and descriptions of its
// own buffers into a list that the other one keeps for it. The 32 bits of immediate data that come
// with a WRITE say what was written.
//
// See also  docs/rsockets.md (the format, and what stock ends do)
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "base/bytes.h"

namespace softhca::rsocket {

enum class Kind : std::uint8_t {
  Bytes = 0,    // so many bytes are in the receive buffers, behind those before
  Placed = 2,   // never on the wire: names a WRITE into a mapped buffer until it has completed
  Credits = 4,  // up to which message may be sent, modulo 2^16; a buffer may have been listed
  Mapped = 6,   // which entry of the list of mappings was written
  Control = 7,
};

enum class Control : std::uint8_t { Disconnect = 0, Keepalive = 1, Shutdown = 2 };

struct Message {
  Kind kind{};
  std::uint32_t value{};  // 29 bits

  friend bool operator==(const Message&, const Message&) = default;
};

inline constexpr std::uint32_t kValueBits = 29;

constexpr std::uint32_t immediate_of(Message message) {
  return std::uint32_t{static_cast<std::uint8_t>(message.kind)} << kValueBits |
         (message.value & ((1u << kValueBits) - 1));
}
constexpr Message message_of(std::uint32_t immediate) {
  return {static_cast<Kind>(immediate >> kValueBits), immediate & ((1u << kValueBits) - 1)};
}

// Memory that the peer may write to.
struct Buffer {
  std::uint64_t address{};
  std::uint32_t key{};
  std::uint32_t length{};

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// Memory that the peer's program reaches by offsets.
struct Mapping {
  std::uint64_t offset{};
  Buffer buffer{};

  friend bool operator==(const Mapping&, const Mapping&) = default;
};

// As they lie in a list: numbers in the order of the host whose memory it is.
inline constexpr std::size_t kBufferBytes = 16;
inline constexpr std::size_t kMappingBytes = 24;

void store_buffer(Bytes to, const Buffer& buffer, bool swapped);
void store_mapping(Bytes to, const Mapping& mapping, bool swapped);
Mapping load_mapping(ConstBytes from);

// What the ends tell each other when they connect, as the private data of REQ and REP. In network
// order.
struct Greeting {
  bool big_endian{};  // the order of numbers in this end's memory
  bool maps{};        // it has a list of mappings behind that of buffers, if only an empty one
  std::uint16_t credits{};
  std::uint16_t mappings{};  // how many this end's list has room for; of some 15 bits, the top 7
  Buffer list{};             // of buffers; its length counts entries
  Buffer first{};            // the buffer to begin with, entry 0 of the other end's list

  friend bool operator==(const Greeting&, const Greeting&) = default;
};

inline constexpr std::size_t kGreetingBytes = 40;
inline constexpr std::uint8_t kVersion = 1;

std::array<std::byte, kGreetingBytes> greeting_bytes(const Greeting& greeting);
// Nothing if it is too short or of another version; what lies behind it does not matter.
std::optional<Greeting> parse_greeting(ConstBytes bytes);

// The number of mappings that a greeting can tell, if that many are wished for.
std::uint16_t tellable_mappings(std::uint32_t wished);

}  // namespace softhca::rsocket
