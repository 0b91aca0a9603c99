#include "driver/registration.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace softhca::driver {

using trace::Counter;
using trace::EventKind;
using trace::Reason;
using trace::ReasonId;

namespace {

constexpr std::uint32_t kOptionalBits = 0x3ff0'0000;  // IBV_ACCESS_OPTIONAL_RANGE
// Local write; remote write, read, atomic; windows may be bound; zero based, on demand, huge pages.
constexpr std::uint32_t kKnownBits = 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128;
constexpr std::uint32_t kMappedBits = 1 | 2 | 4 | 8;
constexpr std::uint32_t kDeviceBits = 1 | 2 | 4 | 8 | 16 | 32;  // of memory on the device
// What decides how a region is held: local write, zero based, on demand, huge pages.
constexpr std::uint32_t kHoldingBits = 1 | 32 | 64 | 128;

constexpr host::BusRights kReadWrite =
    host::BusRights(host::BusRight::Read) | host::BusRight::Write;

Range<VirtSpace> whole_pages(Range<VirtSpace> buffer, std::uint64_t page_bytes = kPage4K) {
  const VirtAddr first = align_down(buffer.start, page_bytes);
  return {first, pages_touched(buffer, page_bytes) * page_bytes};
}

// All of the program's memory: as programs ask for it, and as it is held.
bool is_whole(Range<VirtSpace> buffer) {
  return buffer.start.value == 0 && (buffer.length == ~std::uint64_t{0} ||
                                     buffer.length == OnDemandRegions::kWholeSpace.length);
}

// Of a region whose pages come on demand.
std::uint64_t page_bytes_of(AccessFlags access) {
  return access.has(Access::HugeTlb) ? kPage2M : kPage4K;
}

host::BusRights rights_for(AccessFlags access) {
  host::BusRights rights = host::BusRight::Read;
  if (access.has(Access::LocalWrite)) rights |= host::BusRight::Write;
  return rights;
}

}  // namespace

Registrations::Registrations(const EngineParts& parts, nic::KeyTable& keys)
    : parts_(parts), keys_(keys), on_demand_(parts) {}

Registrations::~Registrations() {
  keys_.remove_windows();
  for (auto& [key, held] : regions_) {
    keys_.remove({key});
    if (!held.is_nothing) undo(held, Time{0});
  }
}

// C53: remote write or atomic without local write.
Reason Registrations::check_rights(AccessFlags access, std::uint32_t known) {
  const std::uint32_t wanted = access.bits & ~kOptionalBits;
  const bool needs_local_write =
      access.has(Access::RemoteWrite) || access.has(Access::RemoteAtomic);
  if ((!needs_local_write || access.has(Access::LocalWrite)) && (wanted & ~known) == 0) return {};
  return {.id = ReasonId::BadAccessFlags, .object = access.bits};
}

Reason Registrations::check_request(const Request& request) {
  const Range<VirtSpace>& buffer = request.buffer;
  if (buffer.length == 0 || buffer.wraps() ||
      Range<WireSpace>{request.io_address, buffer.length}.wraps())
    return {.id = ReasonId::BadLength, .address = buffer.start.value, .length = buffer.length};
  if (Reason bad = check_rights(request.access, kKnownBits)) {
    bad.address = buffer.start.value;
    bad.length = buffer.length;
    return bad;
  }
  if (!request.access.has(Access::ZeroBased) &&
      offset_in(request.io_address, kPage4K) != offset_in(buffer.start, kPage4K))
    return {.id = ReasonId::PageOffsetDiffers,
            .address = request.io_address.value,
            .length = buffer.length};
  return {};
}

Reason Registrations::pin_all(const std::vector<pcie::Span>& frames, Held& held, bool& counted,
                              Time now) {
  for (const pcie::Span& span : frames) {
    const auto pinned = parts_.pins.pin({span.start, span.bytes}, now);
    if (!pinned) return pinned.error();
    held.pins.push_back(pinned->id);
    counted |= pinned->over_limit;
  }
  return {};
}

void Registrations::undo(Held& held, Time now) {
  parts_.dma.unmap(held.mapping, now);
  if (held.mapped.length != 0) parts_.ram.disown(held.mapped);
  if (held.on_demand) on_demand_.remove(*held.on_demand, now);
  for (const host::PinId pin : held.pins) parts_.pins.unpin(pin, now);
  if (!held.frames.empty()) parts_.space.release_frames(held.frames);
}

// What the kernel says. Faults the pages in, unless they come on demand.
Reason Registrations::check_pages(const Request& request) {
  const Range<VirtSpace>& buffer = request.buffer;
  if (request.access.has(Access::HugeTlb) && parts_.space.smallest_page(buffer) < kPage2M)
    return {.id = ReasonId::NotHugePages, .address = buffer.start.value, .length = buffer.length};
  if (request.access.has(Access::OnDemand)) return {};
  return parts_.space.probe(buffer, request.access.has(Access::LocalWrite));
}

nic::KeyTable::Entry Registrations::entry_of(const Held& held) {
  const Request& request = held.request;
  const std::uint64_t page_bytes = held.on_demand ? page_bytes_of(request.access) : kPage4K;
  return {.pd = request.pd,
          .access = request.access.bits & ~kOptionalBits,
          .start = request.io_address.value,
          .bytes = request.buffer.length,
          .bus = advance(held.mapping.first, offset_in(request.buffer.start, page_bytes)),
          .pages = held.mapping.pages};
}

Result<Registrations::Held, Reason> Registrations::hold_on_demand(const Request& request) {
  const bool whole = is_whole(request.buffer);
  const std::uint64_t page_bytes = page_bytes_of(request.access);
  const bool writable = request.access.has(Access::LocalWrite);
  const auto first =
      whole ? on_demand_.add_whole()
            : on_demand_.add(whole_pages(request.buffer, page_bytes), writable, page_bytes);
  if (!first) return first.error();
  Held held{
      .request = request, .pins = {}, .mapping = {.first = *first, .pages = {}, .stretch = {}}};
  if (whole) held.request.buffer = OnDemandRegions::kWholeSpace;
  held.on_demand = *first;
  return held;
}

Result<Registrations::Held, Reason> Registrations::hold(const Request& wanted, bool& counted,
                                                        Time now) {
  Request request = wanted;
  if (request.access.has(Access::ZeroBased)) request.io_address = {0};
  if (const Reason bad = check_request(request)) return bad;
  if (const Reason bad = check_pages(request)) return bad;
  if (request.access.has(Access::OnDemand)) {
    if (!parts_.profile.has(Feature::OnDemand)) return Reason{.id = ReasonId::NotInProfile};
    return hold_on_demand(request);
  }
  Held held{.request = request, .pins = {}, .mapping = {}};
  held.frames = parts_.space.hold_frames(request.buffer);
  Reason bad = pin_all(held.frames, held, counted, now);
  if (!bad) {
    auto mapped = parts_.dma.map(held.frames, rights_for(request.access), page_order(), now);
    if (mapped)
      held.mapping = std::move(*mapped);
    else
      bad = mapped.error();
  }
  if (!bad) return held;
  undo(held, now);
  return bad;
}

// A plan of faults may name regions. What is on the device, no bus sees.
void Registrations::note_for_faults(wire::Key key, const Held& held) {
  if (parts_.faults == nullptr || held.dm != 0) return;
  const nic::KeyTable::Entry entry = entry_of(held);
  const bool is_stretch = held.mapping.stretch.length != 0;
  parts_.faults->note_region(
      key, is_stretch ? held.mapping.stretch : Range<BusSpace>{entry.bus, entry.bytes});
}

// What is held is a region from now on.
Region Registrations::add_key(wire::Key key, Held held, std::uint64_t bytes, Time now) {
  const Range<VirtSpace> buffer = held.request.buffer;
  parts_.tracer.count(Counter::RegionsRegistered);
  parts_.tracer.count(Counter::BytesRegistered, bytes);
  parts_.tracer.emit(EventKind::Register, now, key.value, buffer.start.value, bytes,
                     held.request.access.bits, held.mapping.first.value, held.request.pd);
  note_for_faults(key, held);
  std::vector<std::uint64_t>().swap(held.mapping.pages);  // the key table has them
  regions_.emplace(key.value, std::move(held));
  return {.key = key, .start = buffer.start, .length = bytes, .counted_not_pinned = false};
}

Result<Region, Reason> Registrations::add(const Request& request, Time now) {
  bool counted = false;
  const std::uint64_t leaves_before = parts_.dma.leaves();
  auto held = hold(request, counted, now);
  if (!held) return held.error();
  const nic::KeyTable::Entry entry = entry_of(*held);
  const auto key = keys_.insert(entry);
  if (!key) {
    undo(*held, now);
    return key.error();
  }
  if (!first_ && !held->on_demand)
    first_ = {.start = request.buffer.start,
              .bus = entry.bus,
              .bytes = request.buffer.length,
              .pages = whole_pages(request.buffer).length / kPage4K,
              .leaves = parts_.dma.leaves() - leaves_before};
  Region region = add_key(*key, std::move(*held), entry.bytes, now);
  region.counted_not_pinned = counted;
  return region;
}

Result<Region, Reason> Registrations::add_mapped(std::uint32_t pd, Bytes memory,
                                                 WireAddr io_address, AccessFlags access,
                                                 Time now) {
  const Request request{
      .pd = pd,
      .buffer = {{reinterpret_cast<std::uintptr_t>(memory.data())}, memory.size()},
      .io_address = io_address,
      .access = access};
  if (const Reason bad = check_rights(access, kMappedBits)) return bad;
  if (const Reason bad = check_request(request)) return bad;
  const Range<VirtSpace> pages = whole_pages(request.buffer);
  const std::vector<pcie::Span> frames = parts_.space.frames(pages);
  auto mapping = parts_.dma.map(frames, rights_for(access), page_order(), now);
  if (!mapping) return mapping.error();
  Held held{.request = request, .pins = {}, .mapping = std::move(*mapping)};
  held.mapped = {frames.front().start, pages.length};
  parts_.ram.own_also(held.mapped);
  const nic::KeyTable::Entry entry = entry_of(held);
  const auto key = keys_.insert(entry);
  if (!key) {
    undo(held, now);
    return key.error();
  }
  return add_key(*key, std::move(held), entry.bytes, now);
}

Result<Region, Reason> Registrations::add_on_device(std::uint32_t pd,
                                                    const Engine::DeviceRange& range,
                                                    std::uint64_t at, AccessFlags access,
                                                    Time now) {
  if (const Reason bad = check_rights(access, kDeviceBits)) return bad;
  if (!access.has(Access::ZeroBased))
    return Reason{.id = ReasonId::ZeroBasedMissing, .object = access.bits};
  const std::uint64_t place = at + range.offset;
  const auto key = keys_.insert({.pd = pd,
                                 .access = access.bits & ~kOptionalBits,
                                 .start = 0,
                                 .bytes = range.bytes,
                                 .bus = {place},
                                 .pages = {},
                                 .is_on_device = true});
  if (!key) return key.error();
  Held held{
      .request = {.pd = pd, .buffer = {{0}, range.bytes}, .io_address = {0}, .access = access},
      .pins = {},
      .mapping = {.first = {place}, .pages = {}, .stretch = {}},
      .dm = range.handle};
  return add_key(*key, std::move(held), range.bytes, now);
}

Reason Registrations::check_advice(std::uint32_t pd, Prefetch how, const Sge& about) const {
  const auto found = regions_.find(about.lkey);
  if (found == regions_.end() || !found->second.on_demand || found->second.request.pd != pd ||
      (how == Prefetch::ForWriting && !found->second.request.access.has(Access::LocalWrite)))
    return {.id = ReasonId::AdviceOnOtherRegion,
            .object = about.lkey,
            .address = about.address,
            .length = about.length};
  const Request& request = found->second.request;
  const Range<WireSpace> region{request.io_address, request.buffer.length};
  if (!region.contains({about.address}, about.length))
    return {.id = ReasonId::AdviceOutOfBounds,
            .object = about.lkey,
            .address = about.address,
            .length = about.length,
            .low = region.start.value,
            .high = region.start.value + region.length};
  return {};
}

Reason Registrations::prefetch(Prefetch how, const Sge& about, Time now) {
  if (about.length == 0) return {};
  const Held& held = regions_.at(about.lkey);
  const std::uint64_t offset = about.address - held.request.io_address.value;
  const Range<VirtSpace> part{advance(held.request.buffer.start, offset), about.length};
  return on_demand_.prefetch(*held.on_demand, part, how, now);
}

bool Registrations::uses_dm(std::uint32_t handle) const {
  return std::ranges::any_of(regions_,
                             [&](const auto& entry) { return entry.second.dm == handle; });
}

// Bytes that stay where they are and keep their rights on the bus are not pinned and mapped anew.
Result<void, Reason> Registrations::change(wire::Key key, const Engine::RegionChange& wanted,
                                           Time now) {
  const auto found = regions_.find(key.value);
  if (found == regions_.end()) return Reason{.id = ReasonId::KeyUnknown, .object = key.value};
  if (found->second.is_nothing || found->second.dm != 0 || found->second.mapped.length != 0)
    return Reason{.id = ReasonId::RegionIsFixed, .object = key.value};
  if (keys_.has_windows(key)) return Reason{.id = ReasonId::RegionHasWindows, .object = key.value};
  Held& held = found->second;
  Request request = held.request;
  if (wanted.pd) request.pd = *wanted.pd;
  if (wanted.access) request.access = *wanted.access;
  if (wanted.buffer) {
    request.buffer = *wanted.buffer;
    request.io_address = {wanted.buffer->start.value};
  }
  const std::uint32_t changed = request.access.bits ^ held.request.access.bits;
  const bool stays = !wanted.buffer && (changed & kHoldingBits) == 0;
  if (stays) {
    if (const Reason bad = check_request(request)) return bad;
    keys_.set_rights(key, request.pd, request.access.bits & ~kOptionalBits);
    held.request = request;
    return {};
  }
  bool counted = false;
  auto fresh = hold(request, counted, now);
  if (!fresh) return fresh.error();
  if (const auto replaced = keys_.replace(key, entry_of(*fresh)); !replaced) {
    undo(*fresh, now);
    return replaced.error();
  }
  note_for_faults(key, *fresh);
  std::vector<std::uint64_t>().swap(fresh->mapping.pages);
  undo(held, now);
  parts_.tracer.emit(EventKind::Deregister, now, key.value, held.request.buffer.start.value,
                     held.request.buffer.length);
  parts_.tracer.emit(EventKind::Register, now, key.value, request.buffer.start.value,
                     request.buffer.length, request.access.bits, fresh->mapping.first.value,
                     request.pd);
  held = std::move(*fresh);
  return {};
}

Result<wire::Key, Reason> Registrations::add_nothing(std::uint32_t pd) {
  const auto key = keys_.insert({.pd = pd,
                                 .access = static_cast<std::uint32_t>(Access::LocalWrite),
                                 .start = 0,
                                 .bytes = ~std::uint64_t{0},
                                 .bus = {},
                                 .pages = {},
                                 .is_null = true});
  if (!key) return key.error();
  Held held;
  held.request.pd = pd;
  held.is_nothing = true;
  regions_.emplace(key->value, std::move(held));
  return *key;
}

Result<void, Reason> Registrations::remove(wire::Key key, Time now) {
  const auto found = regions_.find(key.value);
  if (found == regions_.end()) return Reason{.id = ReasonId::KeyUnknown, .object = key.value};
  if (keys_.has_windows(key)) return Reason{.id = ReasonId::RegionHasWindows, .object = key.value};
  keys_.remove(key);
  if (parts_.faults != nullptr) parts_.faults->forget_region(key);
  if (!found->second.is_nothing) {
    const Range<VirtSpace> buffer = found->second.request.buffer;
    undo(found->second, now);
    parts_.tracer.count(Counter::RegionsDeregistered);
    parts_.tracer.emit(EventKind::Deregister, now, key.value, buffer.start.value, buffer.length);
  }
  regions_.erase(found);
  return {};
}

std::string Registrations::place_text(wire::Key key) const {
  const auto found = regions_.find(key.value);
  if (found == regions_.end() || found->second.request.caller == 0 || !parts_.name_of_place)
    return {};
  return ", registered at " + parts_.name_of_place(found->second.request.caller);
}

bool Registrations::uses_pd(std::uint32_t pd) const {
  return std::ranges::any_of(regions_,
                             [&](const auto& entry) { return entry.second.request.pd == pd; });
}

std::vector<wire::Key> Registrations::of_pd(std::uint32_t pd) const {
  std::vector<wire::Key> keys;
  for (const auto& [key, held] : regions_)
    if (held.request.pd == pd) keys.push_back({key});
  return keys;
}

Result<RingMemory, Reason> Registrations::add_ring(std::uint64_t bytes, Time now, Bytes lent) {
  const std::uint64_t length = ring_pages(bytes);
  const bool is_lent = !lent.empty();
  ASSERT(!is_lent || (parts_.ram.is_process() && lent.size() == length));
  const Bytes ring = is_lent ? lent : parts_.rings.allocate(length);
  if (ring.empty()) return Reason{.id = ReasonId::AddressesExhausted, .length = bytes};
  const pcie::Span frames{parts_.ram.frame_of(ring.data()), length};
  auto mapped = parts_.dma.map({&frames, 1}, kReadWrite, host::PageOrder::InOrder, now);
  if (!mapped) {
    if (!is_lent) parts_.rings.release(ring);
    return mapped.error();
  }
  if (is_lent) {
    std::ranges::fill(ring, std::byte{0});
    parts_.ram.own_also({frames.start, frames.bytes});
  }
  return RingMemory(ring, mapped->first,
                    [parts = parts_, ring, mapping = *mapped, is_lent, frames] {
                      parts.dma.unmap(mapping, Time{0});
                      if (is_lent)
                        parts.ram.disown({frames.start, frames.bytes});
                      else
                        parts.rings.release(ring);
                    });
}

}  // namespace softhca::driver
