// The engine's verbs on memory of the device itself, and on pages that come on demand.
#include <algorithm>

#include "driver/engine.h"
#include "driver/engine_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

namespace {

constexpr std::uint64_t kCopyUnit = 4;  // as devices copy between processor and device memory

Reason beyond(std::uint64_t dm_bytes, std::uint64_t offset, std::uint64_t bytes) {
  return {.id = ReasonId::OutOfBounds, .address = offset, .length = bytes, .high = dm_bytes};
}

bool holds(std::uint64_t dm_bytes, std::uint64_t offset, std::uint64_t bytes) {
  return offset <= dm_bytes && bytes <= dm_bytes - offset;
}

// It was freed by another handle on it.
Reason no_dm(std::uint32_t handle) { return {.id = ReasonId::DeviceMemoryGone, .object = handle}; }

}  // namespace

Result<Region, Reason> Engine::register_mapped(std::uint32_t pd, Bytes memory, WireAddr io_address,
                                               AccessFlags access, Time now) {
  EngineState& s = *state_;
  auto region = s.registrations.add_mapped(pd, memory, io_address, access, now);
  if (!region) {
    s.parts.tracer.emit(region.error(), now);
    s.tell("memory registration", region.error());
  }
  return region;
}

void Engine::tell(std::string_view what, const Reason& reason) const { state_->tell(what, reason); }

Result<void, Reason> Engine::advise(std::uint32_t pd, Prefetch how, std::span<const Sge> about,
                                    bool wait, Time now) {
  const Registrations& registrations = state_->registrations;
  for (const Sge& sge : about)
    if (const Reason bad = registrations.check_advice(pd, how, sge)) return bad;
  for (const Sge& sge : about) {
    const Reason bad = state_->registrations.prefetch(how, sge, now);
    if (bad && wait) return bad;
  }
  return {};
}

Result<std::uint32_t, Reason> Engine::alloc_dm(std::uint64_t bytes, std::uint32_t log_alignment) {
  EngineState& s = *state_;
  if (!s.parts.profile.has(Feature::DeviceMemory)) return s.not_offered("device memory");
  if (bytes == 0) return Reason{.id = ReasonId::BadLength};
  constexpr std::uint32_t kLogAlignmentMost = 20;
  static_assert(std::uint64_t{1} << kLogAlignmentMost == nic::kDeviceMemoryBytes);
  if (log_alignment > kLogAlignmentMost)
    return Reason{
        .id = ReasonId::AttributeOutOfRange, .length = log_alignment, .high = kLogAlignmentMost};
  const std::uint64_t alignment = std::max(kCopyUnit, std::uint64_t{1} << log_alignment);
  const auto at = s.device.own_memory().allocate(bytes, alignment);
  if (!at)
    return Reason{
        .id = ReasonId::DeviceMemoryExhausted, .length = bytes, .high = nic::kDeviceMemoryBytes};
  const std::uint32_t handle = s.next_dm_handle++;
  s.device_memory.emplace(
      handle,
      EngineState::DeviceAllocation{.at = *at, .bytes = bytes, .program = s.parts.space.program()});
  return handle;
}

Result<void, Reason> Engine::free_dm(std::uint32_t handle) {
  EngineState& s = *state_;
  const auto found = s.device_memory.find(handle);
  if (found == s.device_memory.end()) return no_dm(handle);
  if (s.registrations.uses_dm(handle)) return Reason{.id = ReasonId::ObjectBusy, .object = handle};
  s.device.own_memory().release(found->second.at);
  s.device_memory.erase(found);
  return {};
}

Reason Engine::check_dm_copy(std::uint64_t dm_bytes, std::uint64_t offset, std::uint64_t bytes) {
  if (!holds(dm_bytes, offset, bytes)) return beyond(dm_bytes, offset, bytes);
  if (offset % kCopyUnit != 0 || bytes % kCopyUnit != 0)
    return {.id = ReasonId::DeviceMemoryAlignment, .address = offset, .length = bytes};
  return {};
}

Result<void, Reason> Engine::copy_to_dm(std::uint32_t handle, std::uint64_t offset,
                                        ConstBytes from) {
  const auto dm = state_->device_memory.find(handle);
  if (dm == state_->device_memory.end()) return no_dm(handle);
  if (const Reason bad = check_dm_copy(dm->second.bytes, offset, from.size())) return bad;
  if (!from.empty()) state_->device.own_memory().write(dm->second.at + offset, from);
  return {};
}

Result<void, Reason> Engine::copy_from_dm(std::uint32_t handle, std::uint64_t offset, Bytes to) {
  const auto dm = state_->device_memory.find(handle);
  if (dm == state_->device_memory.end()) return no_dm(handle);
  if (const Reason bad = check_dm_copy(dm->second.bytes, offset, to.size())) return bad;
  if (!to.empty()) state_->device.own_memory().read(dm->second.at + offset, to);
  return {};
}

Result<Region, Reason> Engine::register_dm(std::uint32_t pd, const DeviceRange& range,
                                           AccessFlags access, Time now) {
  EngineState& s = *state_;
  const auto found = s.device_memory.find(range.handle);
  if (found == s.device_memory.end()) return no_dm(range.handle);
  const EngineState::DeviceAllocation& dm = found->second;
  auto region = holds(dm.bytes, range.offset, range.bytes)
                    ? s.registrations.add_on_device(pd, range, dm.at, access, now)
                    : Result<Region, Reason>(beyond(dm.bytes, range.offset, range.bytes));
  if (!region) {
    s.parts.tracer.emit(region.error(), now);
    s.tell("registration of device memory", region.error());
  }
  return region;
}

}  // namespace softhca::driver
