#include "driver/table_memory.h"

#include <cstring>

#include "base/address.h"
#include "base/assert.h"
#include "base/range.h"

namespace softhca::driver {
namespace {

constexpr std::uint64_t pages(std::uint64_t bytes) {
  return (bytes + kPage4K - 1) / kPage4K * kPage4K;
}

TableHeader layout() {
  TableHeader h;
  std::memcpy(h.magic, kTableMagic, sizeof h.magic);
  h.version = kTableVersion;
  h.counters = static_cast<std::uint32_t>(trace::kCounterCount);
  h.keys = nic::kMaxKeys + nic::kMaxWindows + 1;  // entry 0 is never used
  h.qps = nic::kMaxQps;
  h.counters_at = kPage4K;
  h.qps_at = h.counters_at + pages(h.counters * sizeof(std::uint64_t));
  h.srqs = nic::kMaxSrqs;
  h.srqs_at = h.qps_at + pages(h.qps * sizeof(nic::QpRecord));
  h.refusals = TableMemory::kRefusals;
  h.refusals_at = h.srqs_at + pages(h.srqs * sizeof(nic::SrqRecord));
  h.keys_at = h.refusals_at + pages(h.refusals * sizeof(RefusalRecord));
  h.translations_at = h.keys_at + pages(h.keys * sizeof(nic::KeyRecord));
  h.iommu_at = h.translations_at + pages(TableMemory::kTranslations * sizeof(std::uint64_t));
  h.end_at = h.iommu_at + TableMemory::kIommuBytes;
  return h;
}

template <class Record>
std::span<Record> section(Bytes memory, std::uint64_t at, std::uint64_t count) {
  return {reinterpret_cast<Record*>(memory.data() + at), count};
}

}  // namespace

std::uint64_t TableMemory::bytes_needed() { return layout().end_at; }

TableMemory::TableMemory(Bytes memory) : memory_(memory) {
  ASSERT(memory.size() >= bytes_needed());
  header() = layout();
}

std::span<std::uint64_t> TableMemory::counters() {
  return section<std::uint64_t>(memory_, header().counters_at, header().counters);
}

std::span<RefusalRecord> TableMemory::refusals() {
  return section<RefusalRecord>(memory_, header().refusals_at, header().refusals);
}

nic::Tables TableMemory::tables() {
  const TableHeader& h = header();
  return {.keys = section<nic::KeyRecord>(memory_, h.keys_at, h.keys),
          .translations = section<std::uint64_t>(memory_, h.translations_at, kTranslations),
          .qps = section<nic::QpRecord>(memory_, h.qps_at, h.qps),
          .srqs = section<nic::SrqRecord>(memory_, h.srqs_at, h.srqs)};
}

Bytes TableMemory::iommu() { return memory_.subspan(header().iommu_at, kIommuBytes); }

bool is_table_memory(ConstBytes memory, TableHeader& header) {
  if (memory.size() < sizeof header) return false;
  header = load_le<TableHeader>(memory);
  const auto fits = [&](std::uint64_t at, std::uint64_t count, std::uint64_t size) {
    return at % sizeof(std::uint64_t) == 0 && at <= memory.size() &&
           count <= (memory.size() - at) / size;
  };
  return std::memcmp(header.magic, kTableMagic, sizeof header.magic) == 0 &&
         header.version == kTableVersion &&
         fits(header.counters_at, header.counters, sizeof(std::uint64_t)) &&
         fits(header.qps_at, header.qps, sizeof(nic::QpRecord)) &&
         fits(header.refusals_at, header.refusals, sizeof(RefusalRecord)) &&
         fits(header.keys_at, header.keys, sizeof(nic::KeyRecord)) &&
         fits(header.translations_at, TableMemory::kTranslations, sizeof(std::uint64_t)) &&
         header.iommu_at % kPage4K == 0 && fits(header.iommu_at, TableMemory::kIommuBytes, 1);
}

}  // namespace softhca::driver
