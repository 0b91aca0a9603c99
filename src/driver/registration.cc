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
// Local write; remote write, read, atomic; windows may be bound.
constexpr std::uint32_t kKnownBits = 1 | 2 | 4 | 8 | 16;

constexpr host::BusRights kReadWrite =
    host::BusRights(host::BusRight::Read) | host::BusRight::Write;

Range<VirtSpace> whole_pages(Range<VirtSpace> buffer) {
  const VirtAddr first = align_down(buffer.start, kPage4K);
  return {first, pages_touched(buffer, kPage4K) * kPage4K};
}

host::BusRights rights_for(AccessFlags access) {
  host::BusRights rights = host::BusRight::Read;
  if (access.has(Access::LocalWrite)) rights |= host::BusRight::Write;
  return rights;
}

}  // namespace

Registrations::Registrations(const EngineParts& parts, nic::KeyTable& keys)
    : parts_(parts), keys_(keys) {}

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
  if (offset_in(request.io_address, kPage4K) != offset_in(buffer.start, kPage4K))
    return {.id = ReasonId::PageOffsetDiffers,
            .address = request.io_address.value,
            .length = buffer.length};
  return {};
}

Reason Registrations::pin_all(const std::vector<pcie::Span>& frames, Held& held, Region& region,
                              Time now) {
  for (const pcie::Span& span : frames) {
    const auto pinned = parts_.pins.pin({span.start, span.bytes}, now);
    if (!pinned) return pinned.error();
    held.pins.push_back(pinned->id);
    region.counted_not_pinned |= pinned->over_limit;
  }
  return {};
}

void Registrations::undo(Held& held, Time now) {
  parts_.dma.unmap(held.mapping, now);
  for (const host::PinId pin : held.pins) parts_.pins.unpin(pin, now);
}

nic::KeyTable::Entry Registrations::entry_of(const Held& held) {
  const Request& request = held.request;
  return {.pd = request.pd,
          .access = request.access.bits & ~kOptionalBits,
          .start = request.io_address.value,
          .bytes = request.buffer.length,
          .bus = advance(held.mapping.first, offset_in(request.buffer.start, kPage4K)),
          .pages = held.mapping.pages};
}

Result<Registrations::Held, Reason> Registrations::hold(const Request& request, Region& region,
                                                        Time now) {
  if (const Reason bad = check_request(request)) return bad;
  if (const Reason bad = parts_.space.probe(request.buffer, request.access.has(Access::LocalWrite)))
    return bad;
  const std::vector<pcie::Span> frames = parts_.space.frames(whole_pages(request.buffer));
  Held held{.request = request, .pins = {}, .mapping = {}};
  Reason bad = pin_all(frames, held, region, now);
  if (!bad) {
    auto mapped = parts_.dma.map(frames, rights_for(request.access), page_order(), now);
    if (mapped)
      held.mapping = std::move(*mapped);
    else
      bad = mapped.error();
  }
  if (!bad) return held;
  undo(held, now);
  return bad;
}

Result<Region, Reason> Registrations::add(const Request& request, Time now) {
  Region region{.key = {},
                .start = request.buffer.start,
                .length = request.buffer.length,
                .counted_not_pinned = false};
  const std::uint64_t leaves_before = parts_.dma.leaves();
  auto held = hold(request, region, now);
  if (!held) return held.error();
  const auto key = keys_.insert(entry_of(*held));
  if (!key) {
    undo(*held, now);
    return key.error();
  }
  region.key = *key;
  parts_.tracer.count(Counter::RegionsRegistered);
  parts_.tracer.count(Counter::BytesRegistered, request.buffer.length);
  parts_.tracer.emit(EventKind::Register, now, key->value, request.buffer.start.value,
                     request.buffer.length, request.access.bits, held->mapping.first.value,
                     request.pd);
  if (!first_)
    first_ = {.start = request.buffer.start,
              .bus = entry_of(*held).bus,
              .bytes = request.buffer.length,
              .pages = whole_pages(request.buffer).length / kPage4K,
              .leaves = parts_.dma.leaves() - leaves_before};
  std::vector<std::uint64_t>().swap(held->mapping.pages);  // the key table has them
  regions_.emplace(key->value, std::move(*held));
  return region;
}

// Bytes that stay where they are and keep their rights on the bus are not pinned and mapped anew.
Result<void, Reason> Registrations::change(wire::Key key, const Engine::RegionChange& wanted,
                                           Time now) {
  const auto found = regions_.find(key.value);
  if (found == regions_.end()) return Reason{.id = ReasonId::KeyUnknown, .object = key.value};
  if (found->second.is_nothing || found->second.dm != 0)
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
  const bool stays = !wanted.buffer && request.access.has(Access::LocalWrite) ==
                                           held.request.access.has(Access::LocalWrite);
  if (stays) {
    if (const Reason bad = check_request(request)) return bad;
    keys_.set_rights(key, request.pd, request.access.bits & ~kOptionalBits);
    held.request = request;
    return {};
  }
  Region region;
  auto fresh = hold(request, region, now);
  if (!fresh) return fresh.error();
  if (const auto replaced = keys_.replace(key, entry_of(*fresh)); !replaced) {
    undo(*fresh, now);
    return replaced.error();
  }
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

Result<Region, Reason> Registrations::add_on_device(std::uint32_t pd,
                                                    const Engine::DeviceRange& range,
                                                    std::uint64_t at, AccessFlags access,
                                                    Time now) {
  if (const Reason bad =
          check_rights(access, kKnownBits | static_cast<std::uint32_t>(Access::ZeroBased)))
    return bad;
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
  parts_.tracer.count(Counter::RegionsRegistered);
  parts_.tracer.count(Counter::BytesRegistered, range.bytes);
  parts_.tracer.emit(EventKind::Register, now, key->value, 0, range.bytes, access.bits, place, pd);
  regions_.emplace(
      key->value,
      Held{.request = {.pd = pd, .buffer = {{0}, range.bytes}, .io_address = {0}, .access = access},
           .pins = {},
           .mapping = {},
           .dm = range.handle});
  return Region{.key = *key, .start = {0}, .length = range.bytes, .counted_not_pinned = false};
}

bool Registrations::uses_dm(std::uint32_t handle) const {
  return std::ranges::any_of(regions_,
                             [&](const auto& entry) { return entry.second.dm == handle; });
}

Result<void, Reason> Registrations::remove(wire::Key key, Time now) {
  const auto found = regions_.find(key.value);
  if (found == regions_.end()) return Reason{.id = ReasonId::KeyUnknown, .object = key.value};
  if (keys_.has_windows(key)) return Reason{.id = ReasonId::RegionHasWindows, .object = key.value};
  keys_.remove(key);
  if (!found->second.is_nothing) {
    const Range<VirtSpace> buffer = found->second.request.buffer;
    undo(found->second, now);
    parts_.tracer.count(Counter::RegionsDeregistered);
    parts_.tracer.emit(EventKind::Deregister, now, key.value, buffer.start.value, buffer.length);
  }
  regions_.erase(found);
  return {};
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

Result<RingMemory, Reason> Registrations::add_ring(std::uint64_t bytes, Time now) {
  const std::uint64_t length = (bytes + kPage4K - 1) / kPage4K * kPage4K;
  const Bytes ring = parts_.rings.allocate(length);
  if (ring.empty()) return Reason{.id = ReasonId::AddressesExhausted, .length = bytes};
  const pcie::Span frames{parts_.ram.frame_of(ring.data()), length};
  auto mapped = parts_.dma.map({&frames, 1}, kReadWrite, host::PageOrder::InOrder, now);
  if (!mapped) {
    parts_.rings.release(ring);
    return mapped.error();
  }
  return RingMemory(ring, mapped->first, [parts = parts_, ring, mapping = *mapped] {
    parts.dma.unmap(mapping, Time{0});
    parts.rings.release(ring);
  });
}

}  // namespace softhca::driver
