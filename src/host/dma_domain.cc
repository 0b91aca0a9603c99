#include "host/dma_domain.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"

namespace softhca::host {

using trace::EventKind;
using trace::Reason;
using trace::ReasonId;

namespace {

Reason out_of_addresses(std::uint64_t bytes) {
  return {.id = ReasonId::AddressesExhausted,
          .object = 0,
          .address = 0,
          .length = bytes,
          .low = 0,
          .high = 0};
}

// Bus addresses that equal the physical ones.
DmaMapping same_addresses(std::span<const pcie::Span> frames) {
  DmaMapping mapping{.first = {frames.front().start.value}, .pages = {}, .stretch = {}};
  std::uint64_t next = frames.front().start.value;
  const bool one_stretch = std::ranges::all_of(frames, [&](const pcie::Span& span) {
    const bool follows = span.start.value == next;
    next = span.start.value + span.bytes;
    return follows;
  });
  if (one_stretch) return mapping;
  for (const pcie::Span& span : frames)
    for (std::uint64_t done = 0; done < span.bytes; done += kPage4K)
      mapping.pages.push_back(advance(span.start, done).value);
  return mapping;
}

// Brings the places into an order that is not the first one, if there is another.
void permute(std::vector<std::uint64_t>& places, Prng& prng) {
  for (std::uint64_t i = places.size() - 1; i > 0; --i)
    std::swap(places[i], places[prng.below(i + 1)]);
  if (places.size() > 1 && std::ranges::is_sorted(places))
    std::rotate(places.begin(), places.begin() + 1, places.end());
}

struct LeafChoice {
  std::uint64_t leaf = kPage4K;
  std::uint64_t phase = 0;  // of the whole stretch, modulo the leaf
};

// Where the stretch has to start for the span with the largest leaf to have it.
LeafChoice choose_leaf(std::span<const pcie::Span> frames) {
  LeafChoice best;
  std::uint64_t offset = 0;
  for (const pcie::Span& span : frames) {
    const std::uint64_t leaf = best_leaf({span.start, span.bytes});
    if (leaf > best.leaf || offset == 0)
      best = {leaf, (span.start.value - offset) & (leaf - 1) & ~(kPage4K - 1)};
    offset += span.bytes;
  }
  return best;
}

}  // namespace

DmaDomain::DmaDomain(const Parts& parts, IommuMode mode, std::uint64_t seed, std::uint16_t domain)
    : parts_(parts), mode_(mode), prng_(seed) {
  if (parts_.contexts != nullptr && mode_ != IommuMode::Off) {
    const auto attached = parts_.contexts->set(
        parts_.iommu.requester(),
        {.type = mode_ == IommuMode::PassThrough ? TranslationType::PassThrough
                 : parts_.port.has_device_tlb()  ? TranslationType::SecondLevelWithAts
                                                 : TranslationType::SecondLevel,
         .width = 2,
         .domain = domain,
         .second_level = translates() ? parts_.iommu.root() : 0});
    ASSERT(attached);
  }
  parts_.port.attach(this);
}

DmaDomain::~DmaDomain() {
  flush(latest_);
  if (parts_.contexts != nullptr) parts_.contexts->clear(parts_.iommu.requester());
  parts_.port.attach(nullptr);
}

// A peer's memory that the switch routes to by itself.
bool DmaDomain::is_direct(const pcie::Span& span) const {
  return parts_.port.reaches_directly({span.start, span.bytes});
}

std::optional<BusAddr> DmaDomain::allocate(std::uint64_t bytes, const std::uint64_t leaf,
                                           std::uint64_t phase) {
  const auto bus = parts_.iova.allocate(bytes, leaf, phase);
  if (bus || queue_.empty()) return bus;
  flush(latest_);  // what waits may be what is missing
  return parts_.iova.allocate(bytes, leaf, phase);
}

Result<DmaMapping, Reason> DmaDomain::map(std::span<const pcie::Span> frames, BusRights rights,
                                          PageOrder order, Time now) {
  ASSERT(!frames.empty());
  latest_ = later(latest_, now);
  flush_due(now);
  std::uint64_t bytes = 0;
  for (const pcie::Span& span : frames) bytes += span.bytes;
  const auto direct = [&](const pcie::Span& span) { return is_direct(span); };
  if (!translates() || std::ranges::all_of(frames, direct)) return same_addresses(frames);
  if (order == PageOrder::InOrder && std::ranges::none_of(frames, direct))
    return map_in_order(frames, rights, bytes, now);
  return map_pages(frames, rights, bytes, order, now);
}

Result<DmaMapping, Reason> DmaDomain::map_in_order(std::span<const pcie::Span> frames,
                                                   BusRights rights, std::uint64_t bytes,
                                                   Time now) {
  const LeafChoice choice = choose_leaf(frames);
  const auto bus = allocate(bytes, choice.leaf, choice.phase);
  if (!bus) return out_of_addresses(bytes);
  DmaMapping mapping{.first = *bus, .pages = {}, .stretch = {*bus, bytes}};
  BusAddr at = *bus;
  for (const pcie::Span& span : frames) {
    const auto mapped = parts_.iommu.map(at, span.start, span.bytes, rights, now);
    if (!mapped) {
      take_back(mapping.stretch, now, Forget::Everything);
      return mapped.error();
    }
    at = advance(at, span.bytes);
  }
  return mapping;
}

Result<DmaMapping, Reason> DmaDomain::map_pages(std::span<const pcie::Span> frames,
                                                BusRights rights, std::uint64_t bytes,
                                                PageOrder order, Time now) {
  const auto bus = allocate(bytes, kPage4K, 0);
  if (!bus) return out_of_addresses(bytes);
  DmaMapping mapping{.first = {}, .pages = {}, .stretch = {*bus, bytes}};
  std::vector<std::uint64_t> places(bytes / kPage4K);
  std::iota(places.begin(), places.end(), std::uint64_t{0});
  if (order == PageOrder::Permuted) permute(places, prng_);
  mapping.pages.reserve(places.size());
  for (const pcie::Span& span : frames) {
    const bool direct = is_direct(span);
    for (std::uint64_t done = 0; done < span.bytes; done += kPage4K) {
      if (direct) {
        mapping.pages.push_back(advance(span.start, done).value);
        continue;
      }
      const BusAddr page = advance(*bus, places[mapping.pages.size()] * kPage4K);
      const auto mapped = parts_.iommu.map(page, advance(span.start, done), kPage4K, rights, now);
      if (!mapped) {
        take_back(mapping.stretch, now, Forget::Everything);
        return mapped.error();
      }
      mapping.pages.push_back(page.value);
    }
  }
  mapping.first = {mapping.pages.front()};
  return mapping;
}

void DmaDomain::unmap(const DmaMapping& mapping, Time now) {
  now = latest_ = later(latest_, now);  // a ring that goes does not know the time
  flush_due(latest_);
  if (mapping.stretch.length == 0) return;
  if (mode_ == IommuMode::TranslateStrict) {
    take_back(mapping.stretch, now, Forget::LeavesIfTablesStay);
    return;
  }
  if (queue_.size() == kFlushEntries) flush(latest_);
  parts_.iommu.unmap(mapping.stretch.start, mapping.stretch.length, now, Iommu::EmptyTables::Keep);
  if (queue_.empty()) next_deadline_ = latest_ + kFlushAfter;
  queue_.push_back({mapping.stretch, latest_});
}

// Clears the leaves, makes sure that nobody remembers them, frees the addresses.
void DmaDomain::take_back(Range<BusSpace> stretch, Time now, Forget what) {
  const std::uint32_t tables = parts_.iommu.table_frames();
  parts_.iommu.unmap(stretch.start, stretch.length, now);
  const bool leaf_only =
      what == Forget::LeavesIfTablesStay && parts_.iommu.table_frames() == tables;
  parts_.port.invalidate(stretch, leaf_only ? InvalidationHint::LeafOnly : InvalidationHint::Full);
  parts_.tracer.emit(EventKind::IotlbInvalidate, now, 0, stretch.start.value, stretch.length, 0, 0);
  parts_.iova.release(stretch.start, stretch.length);
}

Reason DmaDomain::map_at(BusAddr bus, PhysAddr phys, std::uint64_t bytes, BusRights rights,
                         Time now) {
  const auto mapped = parts_.iommu.map(bus, phys, bytes, rights, now);
  return mapped ? Reason{} : mapped.error();
}

void DmaDomain::unmap_at(Range<BusSpace> pages, Time now) {
  const std::uint32_t tables = parts_.iommu.table_frames();
  parts_.iommu.unmap(pages.start, pages.length, now);
  const bool leaf_only = parts_.iommu.table_frames() == tables;
  parts_.port.invalidate(pages, leaf_only ? InvalidationHint::LeafOnly : InvalidationHint::Full);
  parts_.tracer.emit(EventKind::IotlbInvalidate, now, 0, pages.start.value, pages.length, 0, 0);
}

void DmaDomain::flush(Time now) {
  next_deadline_ = Time::never();
  if (queue_.empty()) return;
  parts_.port.invalidate_all();
  for (const Unmapped& gone : queue_) {
    const auto open_for = static_cast<std::uint64_t>((later(now, gone.at) - gone.at).ps);
    parts_.tracer.emit(EventKind::IotlbInvalidate, now, 0, gone.stretch.start.value,
                       gone.stretch.length, 1, open_for);
    parts_.iommu.prune(gone.stretch);
    parts_.iova.release(gone.stretch.start, gone.stretch.length);
  }
  queue_.clear();
}

std::optional<Time> DmaDomain::unmapped_at(BusAddr at) const {
  for (const Unmapped& gone : queue_)
    if (gone.stretch.contains(at, 1)) return gone.at;
  return std::nullopt;
}

}  // namespace softhca::host
