#include "pcie/tlp.h"

#include <algorithm>

#include "base/assert.h"
#include "base/range.h"

namespace softhca::pcie {
namespace {

constexpr std::uint64_t kBoundary = kPage4K;

std::uint64_t pieces(std::uint64_t bytes, std::uint64_t most) { return (bytes + most - 1) / most; }

// How long the first completion is of a read that starts at `at` and does not fit one.
std::uint64_t first_completion(std::uint64_t at, const LinkLimits& limits) {
  return limits.mps - at % limits.rcb;
}

std::uint64_t completions_of_read(std::uint64_t at, std::uint64_t bytes, const LinkLimits& limits) {
  if (bytes <= limits.mps) return 1;
  return 1 + pieces(bytes - first_completion(at, limits), limits.mps);
}

// An access within one 4 KiB block. All its full-sized reads start at the same offset to an RCB
// boundary, since MRRS is a multiple of RCB.
TlpCount count_in_block(std::uint64_t at, std::uint64_t bytes, Direction direction,
                        const LinkLimits& limits) {
  if (bytes == 0) return {};
  if (direction == Direction::Write) return {.writes = pieces(bytes, limits.mps)};
  const std::uint64_t full = bytes / limits.mrrs;
  const std::uint64_t rest = bytes % limits.mrrs;
  TlpCount count;
  count.reads = full + (rest != 0 ? 1 : 0);
  count.completions = full * completions_of_read(at, limits.mrrs, limits);
  if (rest != 0) count.completions += completions_of_read(at, rest, limits);
  return count;
}

void add(TlpCount& sum, const TlpCount& block, std::uint64_t times = 1) {
  sum.reads += block.reads * times;
  sum.writes += block.writes * times;
  sum.completions += block.completions * times;
}

void check(const LinkLimits& limits) {
  const auto power_of_two = [](std::uint32_t n) { return n != 0 && (n & (n - 1)) == 0; };
  ASSERT(power_of_two(limits.mps) && power_of_two(limits.mrrs) && power_of_two(limits.rcb));
  ASSERT(limits.mps <= kBoundary && limits.mrrs <= kBoundary);
  ASSERT(limits.rcb <= limits.mps && limits.rcb <= limits.mrrs);
}

// Cuts the completions of one read request.
void list_completions(const Tlp& read, const LinkLimits& limits, std::vector<Tlp>& out) {
  BusAddr at = read.at;
  std::uint32_t left = read.bytes;
  while (left != 0) {
    const std::uint32_t piece =
        left <= limits.mps ? left : static_cast<std::uint32_t>(first_completion(at.value, limits));
    out.push_back({TlpKind::Completion, at, piece});
    at = advance(at, piece);
    left -= piece;
  }
}

}  // namespace

TlpCount count_tlps_of_long(const Access& access, const LinkLimits& limits) {
  check(limits);
  const std::uint64_t at = access.at.value;
  const std::uint64_t head = std::min(access.bytes, kBoundary - at % kBoundary);
  const std::uint64_t behind = access.bytes - head;
  TlpCount count = count_in_block(at, head, access.direction, limits);
  if (behind >= kBoundary)
    add(count, count_in_block(0, kBoundary, access.direction, limits), behind / kBoundary);
  add(count, count_in_block(0, behind % kBoundary, access.direction, limits));
  return count;
}

std::vector<Tlp> list_tlps(const Access& access, const LinkLimits& limits) {
  check(limits);
  const bool write = access.direction == Direction::Write;
  const std::uint64_t most = write ? limits.mps : limits.mrrs;
  std::vector<Tlp> tlps;
  BusAddr at = access.at;
  std::uint64_t left = access.bytes;
  while (left != 0) {
    const std::uint64_t piece = std::min({left, most, kBoundary - offset_in(at, kBoundary)});
    const Tlp request{write ? TlpKind::MemoryWrite : TlpKind::MemoryRead, at,
                      static_cast<std::uint32_t>(piece)};
    tlps.push_back(request);
    if (!write) list_completions(request, limits, tlps);
    at = advance(at, piece);
    left -= piece;
  }
  return tlps;
}

}  // namespace softhca::pcie
