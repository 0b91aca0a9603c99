#include "host/frame_allocator.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace softhca::host {
namespace {

constexpr std::uint64_t kGigaBlocks = kPage1G / kPage2M;

std::uint64_t frame_number(PhysAddr at) { return at.value / kPage4K; }
PhysAddr frame_at(std::uint64_t number) { return {number * kPage4K}; }

bool in_range(Range<PhysSpace> range, std::uint64_t frame) {
  return range.length != 0 && range.contains(frame_at(frame), kPage4K);
}

}  // namespace

std::string_view frame_use_name(FrameUse use) {
  switch (use) {
    case FrameUse::Free:
      return "free";
    case FrameUse::Kernel:
      return "kernel";
    case FrameUse::PageTable:
      return "page table";
    case FrameUse::Program:
      return "program";
    case FrameUse::DeviceTable:
      return "device table";
    case FrameUse::Orphan:
      return "orphan";
    case FrameUse::Count_:
      break;
  }
  return "?";
}

FrameAllocator::FrameAllocator(Ram& ram, Range<PhysSpace> range, std::uint64_t seed,
                               unsigned fragmentation)
    : ram_(ram), range_(range), prng_(seed), fragmentation_(0) {
  ASSERT(!ram.is_process() && range.length != 0 && !range.wraps());
  ASSERT(offset_in(range.start, kPage4K) == 0 && range.length % kPage4K == 0);
  ASSERT(range.start.value + range.length <= ram.size());
  set_fragmentation(fragmentation);
  first_block_ = range.start.value / kPage2M;
  blocks_.resize(pages_touched(range, kPage2M));
  free_ = frames();
  next_ = frame_number(range.start);
  const std::uint64_t end = next_ + free_;
  for (std::uint64_t block = 0; block < blocks_.size(); ++block) {
    const std::uint64_t base = (first_block_ + block) * kBlockFrames;
    const std::uint64_t low = std::max(base, next_) - base;
    const std::uint64_t high = std::min(base + kBlockFrames, end) - base;
    for (std::uint64_t bit = low; bit < high; ++bit)
      blocks_[block].free[bit / 64] |= std::uint64_t{1} << (bit % 64);
    blocks_[block].free_count = static_cast<std::uint32_t>(high - low);
  }
}

void FrameAllocator::set_fragmentation(unsigned percent) {
  ASSERT(percent <= 100);
  fragmentation_ = percent;
}

bool FrameAllocator::is_free(std::uint64_t frame) const {
  const std::uint64_t block = frame / kBlockFrames - first_block_;
  if (frame / kBlockFrames < first_block_ || block >= blocks_.size()) return false;
  return (blocks_[block].free[frame % kBlockFrames / 64] >> (frame % 64) & 1) != 0;
}

// The first free frame at or behind `from`.
std::optional<std::uint64_t> FrameAllocator::find_up(std::uint64_t from,
                                                     Range<PhysSpace> avoid) const {
  std::uint64_t bit = from % kBlockFrames;
  for (std::uint64_t b = from / kBlockFrames - first_block_; b < blocks_.size(); ++b, bit = 0) {
    const std::uint64_t base = (first_block_ + b) * kBlockFrames;
    if (blocks_[b].free_count == 0 || in_range(avoid, base)) continue;
    for (std::uint64_t word = bit / 64; word < kWords; ++word) {
      std::uint64_t free = blocks_[b].free[word];
      if (word == bit / 64) free &= ~std::uint64_t{0} << (bit % 64);
      if (free != 0) return base + word * 64 + static_cast<unsigned>(std::countr_zero(free));
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FrameAllocator::find_down(Range<PhysSpace> avoid) const {
  for (std::uint64_t b = blocks_.size(); b-- > 0;) {
    const std::uint64_t base = (first_block_ + b) * kBlockFrames;
    if (blocks_[b].free_count == 0 || in_range(avoid, base)) continue;
    for (std::uint64_t word = kWords; word-- > 0;)
      if (const std::uint64_t free = blocks_[b].free[word]; free != 0)
        return base + word * 64 + 63 - static_cast<unsigned>(std::countl_zero(free));
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FrameAllocator::choose(FrameUse use, Range<PhysSpace> avoid) {
  const std::uint64_t first = frame_number(range_.start);
  if (fragmentation_ != 0 && prng_.chance(fragmentation_, 100)) {
    const auto found = find_up(first + prng_.below(frames()), avoid);
    return found ? found : find_up(first, avoid);
  }
  if (!is_movable(use)) return find_down(avoid);
  if (is_free(next_) && !in_range(avoid, next_)) return next_;
  return find_up(first, avoid);
}

bool FrameAllocator::whole_blocks_free(std::uint64_t first, std::uint64_t count) const {
  for (std::uint64_t b = first; b < first + count; ++b)
    if (blocks_[b].free_count != kBlockFrames) return false;
  return true;
}

// The index of the first of `blocks` free blocks that form a huge frame.
std::optional<std::uint64_t> FrameAllocator::find_huge(std::uint64_t blocks, FrameUse use,
                                                       Range<PhysSpace> avoid) {
  const std::uint64_t first = (blocks - first_block_ % blocks) % blocks;
  if (first >= blocks_.size()) return std::nullopt;
  const std::uint64_t places = (blocks_.size() - first) / blocks;
  if (places == 0) return std::nullopt;
  const bool anywhere = fragmentation_ != 0 && prng_.chance(fragmentation_, 100);
  const std::uint64_t start = anywhere ? prng_.below(places) : 0;
  for (std::uint64_t i = 0; i < places; ++i) {
    const std::uint64_t place = (start + i) % places;
    const std::uint64_t b = first + (is_movable(use) ? place : places - 1 - place) * blocks;
    const Range<PhysSpace> memory{{(first_block_ + b) * kPage2M}, blocks * kPage2M};
    if (!memory.overlaps(avoid) && whole_blocks_free(b, blocks)) return b;
  }
  return std::nullopt;
}

std::optional<PhysAddr> FrameAllocator::take(std::uint64_t bytes, const FrameOwner& owner,
                                             Range<PhysSpace> avoid) {
  ASSERT(bytes == kPage4K || bytes == kPage2M || bytes == kPage1G);
  ASSERT(owner.use != FrameUse::Free && owner.use != FrameUse::Count_);
  ASSERT(offset_in(avoid.start, kPage2M) == 0 && avoid.length % kPage2M == 0);
  if (bytes == kPage4K) {
    const auto frame = choose(owner.use, avoid);
    if (!frame) return std::nullopt;
    occupy(*frame, owner);
    if (is_movable(owner.use)) next_ = *frame + 1;
    return frame_at(*frame);
  }
  const auto block = find_huge(bytes / kPage2M, owner.use, avoid);
  if (!block) return std::nullopt;
  occupy_huge(*block, bytes / kPage2M, owner);
  return PhysAddr{(first_block_ + *block) * kPage2M};
}

std::optional<PhysAddr> FrameAllocator::take_run(std::uint64_t count, const FrameOwner& owner) {
  ASSERT(count > 0 && owner.use != FrameUse::Free && owner.use != FrameUse::Count_);
  const std::uint64_t total = frames();
  const std::uint64_t first = frame_number(range_.start);
  const bool up = is_movable(owner.use);
  std::uint64_t run = 0;
  for (std::uint64_t i = 0; i < total; ++i) {
    const std::uint64_t frame = up ? first + i : first + total - 1 - i;
    run = is_free(frame) ? run + 1 : 0;
    if (run < count) continue;
    const std::uint64_t start = up ? frame + 1 - count : frame;
    for (std::uint64_t f = start; f < start + count; ++f) occupy(f, owner);
    return frame_at(start);
  }
  return std::nullopt;
}

void FrameAllocator::occupy(std::uint64_t frame, const FrameOwner& owner) {
  Block& block = blocks_[frame / kBlockFrames - first_block_];
  const std::uint64_t bit = std::uint64_t{1} << (frame % 64);
  const std::size_t word = frame % kBlockFrames / 64;
  block.free[word] &= ~bit;
  --block.free_count;
  --free_;
  if ((block.used_before[word] & bit) != 0) ram_.zero({frame_at(frame), kPage4K});
  block.used_before[word] |= bit;
  small_[frame] = {owner, 1};
  ++used_[static_cast<std::size_t>(owner.use)];
}

void FrameAllocator::occupy_huge(std::uint64_t first, std::uint64_t count,
                                 const FrameOwner& owner) {
  std::uint64_t dirty_from = first;  // blocks from here up to b are to be zeroed
  const auto zero_up_to = [&](std::uint64_t b) {
    ram_.zero({{(first_block_ + dirty_from) * kPage2M}, (b - dirty_from) * kPage2M});
    dirty_from = b + 1;
  };
  for (std::uint64_t b = first; b < first + count; ++b) {
    Block& block = blocks_[b];
    if (std::ranges::all_of(block.used_before, [](std::uint64_t word) { return word == 0; }))
      zero_up_to(b);
    block.used_before.fill(~std::uint64_t{0});
    block.free.fill(0);
    block.free_count = 0;
    block.huge = count == 1 ? 1 : 2;
  }
  zero_up_to(first + count);
  blocks_[first].whole = {owner, 1};
  free_ -= count * kBlockFrames;
  used_[static_cast<std::size_t>(owner.use)] += count * kBlockFrames;
}

// The record of the frame that holds the byte; null if it is free or not ours.
const FrameAllocator::Record* FrameAllocator::find_record(PhysAddr at) const {
  const std::uint64_t frame = frame_number(at);
  if (!range_.contains(at, 1) || is_free(frame)) return nullptr;
  const Block& block = blocks_[frame / kBlockFrames - first_block_];
  if (block.huge == 1) return &block.whole;
  if (block.huge == 2)
    return &blocks_[frame / kBlockFrames / kGigaBlocks * kGigaBlocks - first_block_].whole;
  const auto record = small_.find(frame);
  ASSERT(record != small_.end());
  return &record->second;
}

FrameAllocator::Record& FrameAllocator::record_of(PhysAddr frame) {
  const Record* record = find_record(frame);
  ASSERT(record != nullptr);
  return const_cast<Record&>(*record);
}

void FrameAllocator::share(PhysAddr frame) { ++record_of(frame).shares; }

bool FrameAllocator::release(PhysAddr frame, std::uint64_t bytes) {
  ASSERT(bytes == frame_bytes(frame) && offset_in(frame, bytes) == 0);
  Record& record = record_of(frame);
  ASSERT(record.shares > 0);
  if (--record.shares != 0) return false;
  const std::uint64_t count = bytes / kPage4K;
  used_[static_cast<std::size_t>(record.owner.use)] -= count;
  free_ += count;
  const std::uint64_t first = frame_number(frame);
  Block* block = &blocks_[first / kBlockFrames - first_block_];
  if (bytes == kPage4K) {
    block->free[first % kBlockFrames / 64] |= std::uint64_t{1} << (first % 64);
    ++block->free_count;
    small_.erase(first);
    return true;
  }
  for (Block* const end = block + bytes / kPage2M; block != end; ++block) {
    block->free.fill(~std::uint64_t{0});
    block->free_count = kBlockFrames;
    block->huge = 0;
  }
  return true;
}

std::uint32_t FrameAllocator::shares(PhysAddr frame) const {
  const Record* record = find_record(frame);
  return record == nullptr ? 0 : record->shares;
}

void FrameAllocator::set_owner(PhysAddr frame, std::uint64_t bytes, const FrameOwner& owner) {
  ASSERT(owner.use != FrameUse::Free && owner.use != FrameUse::Count_);
  Record& record = record_of(frame);
  used_[static_cast<std::size_t>(record.owner.use)] -= bytes / kPage4K;
  used_[static_cast<std::size_t>(owner.use)] += bytes / kPage4K;
  record.owner = owner;
}

void FrameAllocator::note_write(Range<PhysSpace> range) {
  const std::uint64_t first = frame_number(range.start);
  const std::uint64_t count = range.wraps() ? 0 : pages_touched(range, kPage4K);
  for (std::uint64_t frame = first; frame < first + count; ++frame)
    if (is_free(frame))
      blocks_[frame / kBlockFrames - first_block_].used_before[frame % kBlockFrames / 64] |=
          std::uint64_t{1} << (frame % 64);
}

FrameOwner FrameAllocator::owner_of(PhysAddr at) const {
  const Record* record = find_record(at);
  return record == nullptr ? FrameOwner{} : record->owner;
}

std::uint64_t FrameAllocator::frame_bytes(PhysAddr at) const {
  if (find_record(at) == nullptr) return kPage4K;
  const Block& block = blocks_[at.value / kPage2M - first_block_];
  return block.huge == 0 ? kPage4K : block.huge == 1 ? kPage2M : kPage1G;
}

std::uint64_t FrameAllocator::free_huge(std::uint64_t bytes) const {
  const std::uint64_t blocks = bytes / kPage2M;
  std::uint64_t found = 0;
  for (std::uint64_t b = (blocks - first_block_ % blocks) % blocks; b + blocks <= blocks_.size();
       b += blocks)
    found += whole_blocks_free(b, blocks) ? 1 : 0;
  return found;
}

std::uint64_t FrameAllocator::free_in(Range<PhysSpace> range) const {
  ASSERT(offset_in(range.start, kPage2M) == 0 && range.length % kPage2M == 0);
  std::uint64_t found = 0;
  for (std::uint64_t b = 0; b < blocks_.size(); ++b)
    if (in_range(range, (first_block_ + b) * kBlockFrames)) found += blocks_[b].free_count;
  return found;
}

}  // namespace softhca::host
