#include "nic/key_table.h"

#include <algorithm>
#include <atomic>

#include "base/assert.h"
#include "base/range.h"
#include "nic/limits.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;

namespace {

// Bits of ibv_access_flags.
constexpr std::uint32_t kLocalWrite = 1, kRemoteWrite = 2, kRemoteRead = 4, kRemoteAtomic = 8;

bool is_layout(const KeyRecord& key, KeyLayout layout) {
  return key.layout == static_cast<std::uint32_t>(layout);
}

bool is_state(const KeyRecord& key, KeyState state) {
  return key.state == static_cast<std::uint32_t>(state);
}

bool is_local(KeyRight right) {
  return right == KeyRight::LocalRead || right == KeyRight::LocalWrite;
}

bool has_right(std::uint32_t access, KeyRight right) {
  switch (right) {
    case KeyRight::LocalRead:
      return true;
    case KeyRight::LocalWrite:
      return (access & kLocalWrite) != 0;
    case KeyRight::RemoteRead:
      return (access & kRemoteRead) != 0;
    case KeyRight::RemoteWrite:
      return (access & kRemoteWrite) != 0;
    case KeyRight::RemoteAtomic:
      return (access & kRemoteAtomic) != 0;
  }
  return false;
}

std::uint32_t pages_of(const KeyRecord& key) {
  return static_cast<std::uint32_t>((key.page_offset + key.bytes + kPage4K - 1) / kPage4K);
}

}  // namespace

Reason check_key(std::span<const KeyRecord> keys, const KeyAccess& access, wire::Qpn qpn) {
  const std::uint32_t index = access.key.index();
  if (index < keys.size()) return check_record(keys[index], access, qpn);
  return {.id = ReasonId::KeyUnknown,
          .object = access.key.value,
          .address = access.address,
          .length = access.bytes};
}

Reason check_record(const KeyRecord& key, const KeyAccess& access, wire::Qpn qpn) {
  const auto refuse = [&](ReasonId id) {
    return Reason{
        .id = id, .object = access.key.value, .address = access.address, .length = access.bytes};
  };
  if (key.generation == 0) return refuse(ReasonId::KeyUnknown);
  if (!is_state(key, KeyState::Valid) || key.variant != access.key.variant())
    return refuse(is_state(key, KeyState::Unbound) ? ReasonId::WindowUnbound : ReasonId::KeyStale);
  if (key.pd != access.pd) return refuse(ReasonId::KeyOtherDomain);
  if (key.layout >= static_cast<std::uint32_t>(KeyLayout::Window)) {
    if (is_layout(key, KeyLayout::Window)) {
      if (is_local(access.right)) return refuse(ReasonId::WindowIsRemote);
      if (key.page_offset != 0 && key.page_offset != qpn.value)
        return refuse(ReasonId::WindowOtherQp);
    } else if (is_local(access.right)) {
      return {};  // a null region has every address
    }
  }
  if (!has_right(key.access, access.right)) return refuse(ReasonId::RightMissing);
  if (Range<WireSpace>{{access.address}, access.bytes}.wraps())
    return refuse(ReasonId::AddressWraps);
  if (!Range<WireSpace>{{key.start}, key.bytes}.contains({access.address}, access.bytes)) {
    Reason reason = refuse(ReasonId::OutOfBounds);
    reason.low = key.start;
    reason.high = key.start + key.bytes;
    return reason;
  }
  return {};
}

BusPiece first_piece(std::span<const KeyRecord> keys, std::span<const std::uint64_t> translations,
                     const KeyRecord& key, std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t offset = address - key.start;
  if (is_layout(key, KeyLayout::Window)) {
    const KeyRecord& region = keys[key.first_page];
    ASSERT(!is_layout(region, KeyLayout::Window));
    return first_piece(keys, translations, region, key.bus + offset, bytes);
  }
  if (!is_layout(key, KeyLayout::Pages)) return {advance(BusAddr{key.bus}, offset), bytes};
  const std::uint64_t in_pages = key.page_offset + offset;
  const std::uint64_t page = translations[key.first_page + in_pages / kPage4K];
  const std::uint64_t in_page = in_pages % kPage4K;
  return {advance(BusAddr{page}, in_page), std::min(bytes, kPage4K - in_page)};
}

KeyTable::KeyTable(Tables tables, SameHost* neighbours)
    : tables_(tables),
      neighbours_(neighbours),
      free_(1, static_cast<std::uint32_t>(tables.keys.size()) - 1) {
  ASSERT(tables.keys.size() >= 2);  // entry 0 stays free, so that key 0 is never valid
  if (!tables.translations.empty())
    free_pages_.emplace(0, static_cast<std::uint32_t>(tables.translations.size()));
}

std::optional<std::uint32_t> KeyTable::take_pages(std::uint32_t count) {
  for (auto stretch = free_pages_.begin(); stretch != free_pages_.end(); ++stretch) {
    const auto [first, length] = *stretch;
    if (length < count) continue;
    free_pages_.erase(stretch);
    if (length > count) free_pages_.emplace(first + count, length - count);
    return first;
  }
  return std::nullopt;
}

void KeyTable::give_back_pages(std::uint32_t first, std::uint32_t count) {
  auto next = free_pages_.lower_bound(first);
  if (next != free_pages_.end() && next->first == first + count) {
    count += next->second;
    next = free_pages_.erase(next);
  }
  if (next != free_pages_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += count;
      return;
    }
  }
  free_pages_.emplace(first, count);
}

// What is in the record counts from now on.
void KeyTable::open(KeyRecord& record) {
  std::atomic_ref(record.state)
      .store(static_cast<std::uint32_t>(KeyState::Valid), std::memory_order_release);
}

// Nobody gets in by it any more, and nobody is inside when this returns.
void KeyTable::close(KeyRecord& record, KeyState state) {
  std::atomic_ref(record.state).store(static_cast<std::uint32_t>(state));
  if (neighbours_ != nullptr) neighbours_->wait_until_left();
}

// All but what makes it valid.
Reason KeyTable::fill(KeyRecord& record, const Entry& entry) {
  std::uint32_t first_page = 0;
  if (!entry.pages.empty()) {
    const auto taken = take_pages(static_cast<std::uint32_t>(entry.pages.size()));
    if (!taken) return {.id = ReasonId::AddressesExhausted, .length = entry.bytes};
    first_page = *taken;
    std::ranges::copy(entry.pages, tables_.translations.begin() + first_page);
  }
  record.pd = entry.pd;
  record.access = entry.access;
  record.start = entry.start;
  record.bytes = entry.bytes;
  record.layout = static_cast<std::uint32_t>(entry.is_null         ? KeyLayout::Null
                                             : entry.is_on_device  ? KeyLayout::OnDevice
                                             : entry.pages.empty() ? KeyLayout::Contiguous
                                                                   : KeyLayout::Pages);
  record.first_page = first_page;
  record.bus = entry.bus.value;
  record.page_offset = entry.bus.value % kPage4K;
  return {};
}

Result<wire::Key, Reason> KeyTable::insert(const Entry& entry) {
  const auto exhausted = Reason{.id = ReasonId::KeysExhausted, .high = kMaxKeys};
  if (regions_in_use() >= kMaxKeys) return exhausted;
  const std::optional<std::uint32_t> index = free_.take();
  if (!index) return exhausted;
  KeyRecord& key = tables_.keys[*index];
  if (const Reason bad = fill(key, entry)) {
    free_.give_back(*index);
    return bad;
  }
  ++key.generation;
  open(key);
  return wire::Key::of(*index, static_cast<std::uint8_t>(key.variant));
}

Result<void, Reason> KeyTable::replace(wire::Key key, const Entry& entry) {
  ASSERT(find(key) != nullptr && !has_windows(key));
  KeyRecord& record = tables_.keys[key.index()];
  const KeyRecord before = record;
  close(record, KeyState::Free);
  const Reason bad = fill(record, entry);
  open(record);
  if (bad) return bad;
  if (is_layout(before, KeyLayout::Pages)) give_back_pages(before.first_page, pages_of(before));
  return {};
}

void KeyTable::set_rights(wire::Key key, std::uint32_t pd, std::uint32_t access) {
  ASSERT(find(key) != nullptr && !has_windows(key));
  KeyRecord& record = tables_.keys[key.index()];
  close(record, KeyState::Free);
  record.pd = pd;
  record.access = access;
  open(record);
}

void KeyTable::remove(wire::Key key) {
  ASSERT(find(key) != nullptr && !has_windows(key));
  KeyRecord& record = tables_.keys[key.index()];
  close(record, KeyState::Free);
  record.variant = (record.variant + 1) & 0xff;
  if (is_layout(record, KeyLayout::Pages)) give_back_pages(record.first_page, pages_of(record));
  free_.give_back(key.index());
}

const KeyRecord* KeyTable::find(wire::Key key) const {
  if (key.index() >= tables_.keys.size()) return nullptr;
  const KeyRecord& record = tables_.keys[key.index()];
  const bool valid = record.state == static_cast<std::uint32_t>(KeyState::Valid) &&
                     record.variant == key.variant();
  return valid ? &record : nullptr;
}

}  // namespace softhca::nic
