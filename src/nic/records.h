// Records of the tables that a device publishes: keys, translations, queue pairs.
//
// They lie in one memfd of the process (live). No pointers: links are indices. A peer on the same
// host, or `softhca stat`, maps them read-only and uses the same check_* functions as the device.
//
// Invariants  (1) a record whose state is not Valid means nothing; `generation` changes with each
//                 reuse
//             (2) of a key that is valid, and of a queue pair in RTR, RTS or SQD, nothing changes
//                 but the state and what is counted: a peer that has seen the state may read on
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "trace/qp_counters.h"

namespace softhca::nic {

// Unbound: a window that opens nothing now.
enum class KeyState : std::uint32_t { Free = 0, Valid = 1, Unbound = 2 };

// Where the bytes are: a region's on the bus, or in the device's own memory (nic/device_memory.h);
// a window's are those of its region; a null region has none, reads as zeros and forgets what is
// written.
enum class KeyLayout : std::uint32_t {
  Contiguous = 0,
  Pages = 1,
  OnDevice = 2,
  Window = 3,
  Null = 4
};

struct KeyRecord {
  std::uint32_t state{};    // KeyState
  std::uint32_t variant{};  // low byte of the key
  std::uint32_t pd{};
  std::uint32_t access{};  // as ibv_access_flags
  std::uint64_t start{};   // first address that peers and SGEs use
  std::uint64_t bytes{};
  std::uint32_t layout{};  // KeyLayout
  // Pages: index of its first entry in the translation table. Window: index of its region's record.
  std::uint32_t first_page{};
  // Contiguous: bus address of the first byte. OnDevice: its place. Window: its address as the
  // region counts.
  std::uint64_t bus{};
  // Pages: offset of the first byte in its 4 KiB page. Window: the QPN that alone may use it, or 0.
  std::uint64_t page_offset{};
  std::uint32_t generation{};
  std::uint32_t reserved{};
};
static_assert(sizeof(KeyRecord) == 64 && std::has_unique_object_representations_v<KeyRecord>);

// What a responder waits for, in one word.
struct Expected {
  std::uint32_t psn{};
  std::uint32_t reads{};  // how many it takes at a time
  bool established{};     // its program knows that the peer sends: in RTS, or told so
  static Expected of_word(std::uint32_t word) {
    return {.psn = word & 0xff'ffff, .reads = word >> 24 & 0x7f, .established = word >> 31 != 0};
  }
  std::uint32_t word() const {
    return psn | reads << 24 | static_cast<std::uint32_t>(established) << 31;
  }
};

// What a peer of this host reads with each of its requests comes first, and what changes with each
// of ours last: on other cache lines, or both would wait for each other.
struct QpRecord {
  std::uint32_t qpn{};    // 0: free
  std::uint32_t state{};  // transport::QpState
  std::uint32_t type{};
  std::uint32_t pd{};
  std::uint32_t access{};
  std::uint32_t dest_qpn{};
  std::uint32_t path_mtu{};
  std::uint32_t generation{};
  std::uint64_t destination[2]{};  // GIDs of its path, as their bytes lie
  std::uint64_t source[2]{};
  std::uint32_t expects{};  // of its peer: see Expected
  std::uint32_t path{};     // of its one-sided requests: kPathDirect, or trace::ReasonId why not
  std::uint32_t message_path{};  // of its packets: kPathRing, or trace::ReasonId why not
  // Its own receive queue: how many were posted, modulo 2^32, and where its ring lies.
  std::uint32_t receive_posted{};
  std::uint64_t receive_bus{};
  std::uint32_t receive_slots{};  // a power of two; 0: none
  std::uint32_t receive_stride{};
  trace::QpCounters counters{};  // since it was created
  std::uint32_t send_done{};     // work requests that are done, modulo 2^32
  std::uint32_t receive_done{};
  std::uint32_t unused[6]{};
};
// They are executed in the memory of the peer, which is on this host. 0: they go as packets.
inline constexpr std::uint32_t kPathDirect = UINT32_MAX;
// They go through this host's memory. 0: as UDP packets.
inline constexpr std::uint32_t kPathRing = UINT32_MAX;
inline constexpr std::size_t kCacheLine = 64;
static_assert(sizeof(QpRecord) == 6 * kCacheLine &&
              std::has_unique_object_representations_v<QpRecord>);
static_assert(offsetof(QpRecord, expects) / kCacheLine !=
              offsetof(QpRecord, send_done) / kCacheLine);

enum class SrqState : std::uint32_t { Free = 0, Ready = 1, Failed = 2 };

struct SrqRecord {
  std::uint32_t srqn{};   // 0: free
  std::uint32_t state{};  // SrqState
  std::uint32_t pd{};
  std::uint32_t xrcd{};   // 0: basic
  std::uint32_t taken{};  // work requests that the device has fetched, modulo 2^32
  std::uint32_t limit{};  // 0: not armed
  std::uint32_t generation{};
  std::uint32_t reserved{};
};
static_assert(sizeof(SrqRecord) == 32 && std::has_unique_object_representations_v<SrqRecord>);

// Where the tables lie. OWNS nothing.
struct Tables {
  std::span<KeyRecord> keys;
  std::span<std::uint64_t> translations;  // bus addresses of 4 KiB pages
  std::span<QpRecord> qps;
  std::span<SrqRecord> srqs = {};
};

}  // namespace softhca::nic
