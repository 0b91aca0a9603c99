// TLPs: the packets that PCI Express cuts a DMA access into.
//
// A memory write carries at most MPS bytes. A memory read asks for at most MRRS bytes and is
// answered by completions: the first ends at an RCB boundary, each carries at most MPS bytes. No
// request crosses a 4 KiB boundary. Where the specification leaves a choice, pieces are as large as
// it allows (root complexes differ; many answer in RCB-sized pieces).
//
// Spec      PCI Express Base, 2.2.7 (4 KiB), 2.3.1.1 (RCB), 7.5.3.4 (MPS, MRRS)
// See also  host/root_port.h
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/range.h"
#include "pcie/port.h"

namespace softhca::pcie {

// REQUIRES: powers of two, rcb <= mps and mrrs, none above 4096.
struct LinkLimits {
  std::uint32_t mps = 256;
  std::uint32_t mrrs = 512;
  std::uint32_t rcb = 64;
};

// Completion carries bytes, Refusal none (Unsupported Request). Rows keep their order: recordings.
enum class TlpKind : std::uint8_t { MemoryRead, MemoryWrite, Completion, Refusal, Message };

struct Tlp {
  TlpKind kind{};
  BusAddr at;  // Completion: where its data comes from
  std::uint32_t bytes{};
  friend bool operator==(Tlp, Tlp) = default;
};

struct TlpCount {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t completions = 0;

  std::uint64_t total() const { return reads + writes + completions; }
  friend bool operator==(TlpCount, TlpCount) = default;
};

// One that takes more than one request, or none.
TlpCount count_tlps_of_long(const Access& access, const LinkLimits& limits);

// How many TLPs an access takes. Constant time. An access of 0 bytes takes none.
// REQUIRES: the access does not wrap.
inline TlpCount count_tlps(const Access& access, const LinkLimits& limits) {
  // What most accesses are: descriptors, completions, small payloads.
  const std::uint64_t most = std::min(limits.mps, limits.mrrs);
  const std::uint64_t in_block = kPage4K - offset_in(access.at, kPage4K);
  if (access.bytes == 0 || access.bytes > most || access.bytes > in_block) [[unlikely]]
    return count_tlps_of_long(access, limits);
  if (access.direction == Direction::Write) return {.writes = 1};
  return {.reads = 1, .completions = 1};
}

// The same, one by one, in the order of their addresses; each read before its completions.
std::vector<Tlp> list_tlps(const Access& access, const LinkLimits& limits);

}  // namespace softhca::pcie
