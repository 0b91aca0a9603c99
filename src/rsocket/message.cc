#include "rsocket/message.h"

#include <algorithm>

namespace softhca::rsocket {
namespace {

constexpr std::uint8_t kFlagBigEndian = 1;
constexpr std::uint8_t kFlagMaps = 2;

// A number of mappings travels in a byte: up to 128 as it is, from there in steps of 256.
constexpr std::uint32_t kExact = 128;
constexpr std::uint32_t kMappingsMax = 127u << 8;

std::uint8_t scaled(std::uint32_t mappings) {
  return static_cast<std::uint8_t>(mappings <= kExact ? mappings : kExact | mappings >> 8);
}
std::uint16_t unscaled(std::uint8_t byte) {
  return static_cast<std::uint16_t>(byte <= kExact ? byte : (byte - kExact) << 8);
}

void store_network(Bytes to, const Buffer& buffer) {
  store_be(to, 0, buffer.address);
  store_be(to, 8, buffer.key);
  store_be(to, 12, buffer.length);
}
Buffer load_network(ConstBytes from) {
  return {load_be<std::uint64_t>(from, 0), load_be<std::uint32_t>(from, 8),
          load_be<std::uint32_t>(from, 12)};
}

}  // namespace

void store_buffer(Bytes to, const Buffer& buffer, bool swapped) {
  if (swapped) return store_network(to, buffer);
  store_le(to, 0, buffer.address);
  store_le(to, 8, buffer.key);
  store_le(to, 12, buffer.length);
}

void store_mapping(Bytes to, const Mapping& mapping, bool swapped) {
  store_le(to, 0, swapped ? byte_swapped(mapping.offset) : mapping.offset);
  store_buffer(to.subspan(8), mapping.buffer, swapped);
}

Mapping load_mapping(ConstBytes from) {
  return {load_le<std::uint64_t>(from, 0),
          {load_le<std::uint64_t>(from, 8), load_le<std::uint32_t>(from, 16),
           load_le<std::uint32_t>(from, 20)}};
}

std::array<std::byte, kGreetingBytes> greeting_bytes(const Greeting& greeting) {
  std::array<std::byte, kGreetingBytes> bytes{};
  const std::uint8_t flags = static_cast<std::uint8_t>((greeting.big_endian ? kFlagBigEndian : 0) |
                                                       (greeting.maps ? kFlagMaps : 0));
  store_be(bytes, 0, kVersion);
  store_be(bytes, 1, flags);
  store_be(bytes, 2, greeting.credits);
  store_be(bytes, 7, scaled(greeting.mappings));
  store_network(Bytes(bytes).subspan(8), greeting.list);
  store_network(Bytes(bytes).subspan(24), greeting.first);
  return bytes;
}

std::optional<Greeting> parse_greeting(ConstBytes bytes) {
  if (bytes.size() < kGreetingBytes || load_be<std::uint8_t>(bytes) != kVersion) return {};
  const auto flags = load_be<std::uint8_t>(bytes, 1);
  Greeting greeting{.big_endian = (flags & kFlagBigEndian) != 0,
                    .maps = (flags & kFlagMaps) != 0,
                    .credits = load_be<std::uint16_t>(bytes, 2),
                    .mappings = unscaled(load_be<std::uint8_t>(bytes, 7)),
                    .list = load_network(bytes.subspan(8)),
                    .first = load_network(bytes.subspan(24))};
  if (!greeting.maps) greeting.mappings = 0;
  return greeting;
}

std::uint16_t tellable_mappings(std::uint32_t wished) {
  return unscaled(scaled(std::min(wished, kMappingsMax)));
}

}  // namespace softhca::rsocket
