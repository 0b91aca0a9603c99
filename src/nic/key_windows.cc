// KeyTable: memory windows.
#include <algorithm>

#include "base/assert.h"
#include "base/range.h"
#include "nic/key_table.h"
#include "nic/limits.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;

namespace {

// Bits of ibv_access_flags that a bind may ask for. LOCAL_WRITE means nothing in a window, which is
// for peers; programs pass it because regions need it.
constexpr std::uint32_t kBindWrite = 2, kBindAtomic = 8, kBindZeroBased = 32;
constexpr std::uint32_t kBindRemote = 2 | 4 | 8;
// And of a region.
constexpr std::uint32_t kRegionLocalWrite = 1, kRegionMwBind = 16;

constexpr auto kUnbound = static_cast<std::uint32_t>(KeyState::Unbound);
constexpr auto kValid = static_cast<std::uint32_t>(KeyState::Valid);
constexpr auto kWindow = static_cast<std::uint32_t>(KeyLayout::Window);
constexpr auto kNull = static_cast<std::uint32_t>(KeyLayout::Null);

}  // namespace

Result<wire::Key, Reason> KeyTable::insert_window(std::uint32_t pd, WindowType type) {
  const auto exhausted = Reason{.id = ReasonId::WindowsExhausted, .high = kMaxWindows};
  if (windows_.size() >= kMaxWindows) return exhausted;
  const std::optional<std::uint32_t> index = free_.take();
  if (!index) return exhausted;
  windows_.emplace(*index, type);
  KeyRecord& record = tables_.keys[*index];
  record = {.state = kUnbound,
            .variant = record.variant,
            .pd = pd,
            .layout = kWindow,
            .generation = record.generation + 1};
  return wire::Key::of(*index, static_cast<std::uint8_t>(record.variant));
}

void KeyTable::remove_window(wire::Key window) {
  const std::uint32_t index = window.index();
  ASSERT(windows_.contains(index));
  unbind(index);
  KeyRecord& record = tables_.keys[index];
  record.state = static_cast<std::uint32_t>(KeyState::Free);
  record.variant = (record.variant + 1) & 0xff;
  windows_.erase(index);
  free_.give_back(index);
}

void KeyTable::remove_windows() {
  while (!windows_.empty()) remove_window(wire::Key::of(windows_.begin()->first, 0));
}

void KeyTable::unbind(std::uint32_t index) {
  KeyRecord& record = tables_.keys[index];
  if (record.state != kValid) return;
  close(record, KeyState::Unbound);
  const auto region = bound_.find(record.first_page);
  ASSERT(region != bound_.end());
  if (--region->second == 0) bound_.erase(region);
}

// What is asked of the region. C10-73 to C10-75; CASES C41 to C43.
Reason KeyTable::check_bind(const Bind& bind, WindowType type) const {
  const auto refuse = [&](ReasonId id) {
    return Reason{
        .id = id, .object = bind.region.value, .address = bind.address, .length = bind.bytes};
  };
  if (bind.region.index() >= tables_.keys.size()) return refuse(ReasonId::KeyUnknown);
  const KeyRecord* const region = find(bind.region);
  if (region == nullptr) return refuse(ReasonId::KeyStale);
  if (region->layout == kWindow) return refuse(ReasonId::NotARegion);
  if (region->layout == kNull) return refuse(ReasonId::NullRegionBound);
  if (region->pd != tables_.keys[bind.window.index()].pd) return refuse(ReasonId::KeyOtherDomain);
  if ((region->access & kRegionMwBind) == 0) return refuse(ReasonId::BindNotAllowed);
  if ((bind.access & (kBindWrite | kBindAtomic)) != 0 && (region->access & kRegionLocalWrite) == 0)
    return refuse(ReasonId::BindRights);
  if ((bind.access & kBindZeroBased) != 0 && type == WindowType::One)  // o10-36.2.2
    return refuse(ReasonId::BindZeroBased);
  if (Range<WireSpace>{{bind.address}, bind.bytes}.wraps()) return refuse(ReasonId::AddressWraps);
  if (!Range<WireSpace>{{region->start}, region->bytes}.contains({bind.address}, bind.bytes)) {
    Reason reason = refuse(ReasonId::OutOfBounds);
    reason.low = region->start;
    reason.high = region->start + region->bytes;
    return reason;
  }
  return {};
}

Reason KeyTable::bind(const Bind& bind, std::uint32_t pd, wire::Qpn qpn) {
  const std::uint32_t index = bind.window.index();
  const auto refuse = [&](ReasonId id) { return Reason{.id = id, .object = bind.window.value}; };
  const auto window = windows_.find(index);
  if (window == windows_.end()) return refuse(ReasonId::KeyUnknown);
  if (bind.new_key.index() != index) return refuse(ReasonId::BindKeyIndex);
  KeyRecord& record = tables_.keys[index];
  if (record.pd != pd) return refuse(ReasonId::KeyOtherDomain);  // C10-72
  const bool is_second = window->second == WindowType::Two;
  if (is_second && record.state != kUnbound) return refuse(ReasonId::WindowBound);  // o10-37.2.30
  if (is_second && bind.bytes == 0) return refuse(ReasonId::BindEmpty);             // o10-37.2.40
  if (bind.bytes != 0)
    if (const Reason bad = check_bind(bind, window->second)) return bad;
  unbind(index);
  record.variant = bind.new_key.variant();
  if (bind.bytes == 0) return {};
  record.access = bind.access & kBindRemote;
  record.start = (bind.access & kBindZeroBased) != 0 ? 0 : bind.address;
  record.bytes = bind.bytes;
  record.first_page = bind.region.index();
  record.bus = bind.address;
  record.page_offset = is_second ? qpn.value : 0;
  open(record);
  ++bound_[record.first_page];
  return {};
}

Reason KeyTable::invalidate(wire::Key key, std::uint32_t pd, wire::Qpn qpn) {
  const std::uint32_t index = key.index();
  const auto refuse = [&](ReasonId id) { return Reason{.id = id, .object = key.value}; };
  if (index >= tables_.keys.size() || tables_.keys[index].generation == 0)
    return refuse(ReasonId::KeyUnknown);
  const KeyRecord& record = tables_.keys[index];
  if (record.state == static_cast<std::uint32_t>(KeyState::Free) || record.variant != key.variant())
    return refuse(ReasonId::KeyStale);
  if (record.pd != pd) return refuse(ReasonId::KeyOtherDomain);
  const auto window = windows_.find(index);
  if (window == windows_.end() || window->second != WindowType::Two)
    return refuse(ReasonId::NotInvalidatable);
  if (record.state == kUnbound) return refuse(ReasonId::WindowUnbound);
  if (record.page_offset != qpn.value) return refuse(ReasonId::WindowOtherQp);
  unbind(index);
  return {};
}

void KeyTable::unbind_all(wire::Key region) {
  for (const auto& [index, type] : windows_)
    if (tables_.keys[index].first_page == region.index()) unbind(index);
}

void KeyTable::forget_queue_pair(wire::Qpn qpn) {
  for (const auto& [index, type] : windows_)
    if (type == WindowType::Two && tables_.keys[index].page_offset == qpn.value) unbind(index);
}

std::vector<wire::Key> KeyTable::windows_of(std::uint32_t pd) const {
  std::vector<wire::Key> keys;
  for (const auto& [index, type] : windows_)
    if (tables_.keys[index].pd == pd)
      keys.push_back(wire::Key::of(index, static_cast<std::uint8_t>(tables_.keys[index].variant)));
  return keys;
}

}  // namespace softhca::nic
