#include "driver/peer_tables.h"

#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "base/range.h"
#include "host/iommu_table.h"
#include "nic/ring_format.h"

namespace softhca::driver {

using nic::KeyLayout;
using nic::KeyRecord;
using nic::KeyRight;
using transport::QpState;
using transport::WorkOpcode;

namespace {

// Bits of ibv_access_flags.
constexpr std::uint32_t kQpWrite = 2, kQpRead = 4, kQpAtomic = 8;

// A word that its owner may be writing. In the one order of all that are read and written so.
std::uint32_t word_at(ConstBytes memory, std::uint64_t at) {
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(memory.data() + at),
                         __ATOMIC_SEQ_CST);
}

std::uint32_t right_of(WorkOpcode kind) {
  if (kind == WorkOpcode::Write) return kQpWrite;
  return kind == WorkOpcode::Read ? kQpRead : kQpAtomic;
}

bool is_address(const std::uint64_t (&bytes)[2], const wire::Gid& address) {
  return std::memcmp(bytes, address.bytes.data(), sizeof bytes) == 0;
}

bool is_layout(const KeyRecord& key, KeyLayout layout) {
  return key.layout == static_cast<std::uint32_t>(layout);
}

}  // namespace

std::optional<PeerTables> PeerTables::over(ConstBytes memory) {
  TableHeader header;
  if (!is_table_memory(memory, header)) return std::nullopt;
  return PeerTables(memory, header);
}

// The record of a queue pair that is connected to ours; null if it is not, or waits for another
// PSN, or its program does not know yet that it is.
const nic::QpRecord* PeerTables::other_end(const nic::Connection& connection, wire::Psn next,
                                           nic::Expected& expected) const {
  const std::uint32_t index = connection.peer.value - header_.first_qpn;
  if (index >= header_.qps) return nullptr;
  const std::uint64_t at = header_.qps_at + index * sizeof(nic::QpRecord);
  const auto state = static_cast<QpState>(word_at(memory_, at + offsetof(nic::QpRecord, state)));
  if (state < QpState::Rtr || state > QpState::Sqd) return nullptr;
  const auto* record = reinterpret_cast<const nic::QpRecord*>(memory_.data() + at);
  expected = nic::Expected::of_word(word_at(memory_, at + offsetof(nic::QpRecord, expects)));
  const bool is_other_end = record->qpn == connection.peer.value &&
                            record->dest_qpn == connection.own.value &&
                            record->type == static_cast<std::uint32_t>(transport::QpType::Rc) &&
                            is_address(record->destination, connection.own_address) &&
                            is_address(record->source, connection.peer_address);
  return is_other_end && expected.established && expected.psn == next.value ? record : nullptr;
}

std::optional<std::uint32_t> PeerTables::domain_of(const nic::Connection& connection,
                                                   wire::Psn next, WorkOpcode kind) const {
  nic::Expected expected;
  const nic::QpRecord* const record = other_end(connection, next, expected);
  const bool takes_it = record != nullptr && (record->access & right_of(kind)) != 0 &&
                        (kind == WorkOpcode::Write || expected.reads != 0);
  if (!takes_it) return std::nullopt;
  return record->pd;
}

std::optional<PeerTables::Receives> PeerTables::receives_of(const nic::Connection& connection,
                                                            wire::Psn next) const {
  nic::Expected expected;
  const nic::QpRecord* const record = other_end(connection, next, expected);
  if (record == nullptr) return std::nullopt;
  const Receives found{
      .pd = record->pd,
      .may_write = (record->access & kQpWrite) != 0,
      .generation = record->generation,
      .posted = __atomic_load_n(&record->receive_posted, __ATOMIC_ACQUIRE),
      .ring = {record->receive_bus},
      .slots = record->receive_slots,
      .stride = record->receive_stride,
  };
  const bool makes_sense = (found.slots & (found.slots - 1)) == 0 &&
                           found.stride >= sizeof(nic::ReceiveWqe) && found.stride <= kPage4K;
  return found.slots == 0 || makes_sense ? std::optional(found) : std::nullopt;
}

std::optional<nic::NextReceive> PeerTables::next_receive(const nic::Connection& connection,
                                                         wire::Psn next) const {
  nic::Expected expected;
  const nic::QpRecord* const record = other_end(connection, next, expected);
  if (record == nullptr) return std::nullopt;
  return nic::NextReceive{.number = __atomic_load_n(&record->receive_done, __ATOMIC_ACQUIRE),
                          .generation = record->generation};
}

void PeerTables::prefetch(wire::Qpn qpn) const {
  const std::uint32_t index = qpn.value - header_.first_qpn;
  if (index >= header_.qps) return;
  const std::byte* const record = memory_.data() + header_.qps_at + index * sizeof(nic::QpRecord);
  softhca::prefetch(record);
  softhca::prefetch(record + offsetof(nic::QpRecord, expects));
}

// A copy of a record that is valid.
std::optional<KeyRecord> PeerTables::record(std::uint32_t index) const {
  if (index >= header_.keys) return std::nullopt;
  const std::uint64_t at = header_.keys_at + index * sizeof(KeyRecord);
  if (word_at(memory_, at + offsetof(KeyRecord, state)) !=
      static_cast<std::uint32_t>(nic::KeyState::Valid))
    return std::nullopt;
  return load_le<KeyRecord>(memory_, at);
}

bool PeerTables::locate(const nic::KeyAccess& access, wire::Qpn qpn, pcie::SpanList& into) const {
  const auto key = record(access.key.index());
  if (!key || nic::check_record(*key, access, qpn)) return false;
  const auto direction =
      access.right == KeyRight::RemoteRead ? pcie::Direction::Read : pcie::Direction::Write;
  if (!is_layout(*key, KeyLayout::Window))
    return locate_in_region(*key, access.address, access.bytes, direction, into);
  const auto region = record(key->first_page);
  const std::uint64_t address = key->bus + (access.address - key->start);
  return region &&
         Range<WireSpace>{{region->start}, region->bytes}.contains({address}, access.bytes) &&
         locate_in_region(*region, address, access.bytes, direction, into);
}

// REQUIRES: the bytes are the region's.
bool PeerTables::locate_in_region(const KeyRecord& region, std::uint64_t address,
                                  std::uint64_t bytes, pcie::Direction direction,
                                  pcie::SpanList& into) const {
  const std::uint64_t offset = address - region.start;
  if (is_layout(region, KeyLayout::Contiguous))
    return translate(advance(BusAddr{region.bus}, offset), bytes, direction, into);
  if (!is_layout(region, KeyLayout::Pages)) return false;
  std::uint64_t in_pages = region.page_offset + offset;
  while (bytes != 0) {
    const std::uint64_t page = region.first_page + in_pages / kPage4K;
    if (page >= TableMemory::kTranslations) return false;
    const std::uint64_t in_page = in_pages % kPage4K;
    const std::uint64_t here = std::min(bytes, kPage4K - in_page);
    const auto bus =
        load_le<std::uint64_t>(memory_, header_.translations_at + page * sizeof(std::uint64_t));
    if (!translate(advance(BusAddr{bus}, in_page), here, direction, into)) return false;
    in_pages += here;
    bytes -= here;
  }
  return true;
}

bool PeerTables::translate(BusAddr at, std::uint64_t bytes, pcie::Direction direction,
                           pcie::SpanList& into) const {
  const host::IommuView iommu(memory_.subspan(header_.iommu_at, TableMemory::kIommuBytes),
                              header_.iommu_root);
  while (bytes != 0) {
    const auto found = iommu.translate(at, direction);
    if (!found) return false;
    const std::uint64_t here =
        std::min(bytes, found->leaf_bytes - offset_in(at, found->leaf_bytes));
    if (!into.append({found->phys, here})) return false;
    at = advance(at, here);
    bytes -= here;
  }
  return true;
}

}  // namespace softhca::driver
