// TableMemory: the tables of a device in one stretch of memory that other processes may map.
//
// Layout: a header, then sections at offsets that the header names. Sparse: only what is used
// takes pages.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "nic/limits.h"
#include "nic/records.h"
#include "trace/counters.h"

namespace softhca::driver {

inline constexpr char kTableMagic[8] = {'S', 'O', 'F', 'T', 'H', 'C', 'A', '\0'};
inline constexpr std::uint32_t kTableVersion = 7;
inline constexpr const char* kTableName = "softhca:";  // then the device's name; shows in /proc

struct TableHeader {
  char magic[8]{};
  std::uint32_t version{};
  std::int32_t pid{};
  char device[32]{};
  char interface[16]{};
  char program[16]{};
  char pin_backend[16]{};
  std::uint32_t counters{};  // how many of each
  std::uint32_t keys{};
  std::uint32_t qps{};
  std::uint32_t first_qpn{};
  std::uint64_t counters_at{};  // offsets in bytes
  std::uint64_t keys_at{};
  std::uint64_t qps_at{};
  std::uint64_t translations_at{};
  std::uint64_t iommu_at{};
  std::uint64_t end_at{};
  std::uint64_t srqs_at{};
  std::uint64_t srqs{};
  std::uint64_t refusals_at{};
  std::uint64_t refusals{};
  std::uint64_t own_address{};    // of this header in its process
  std::uint64_t instance{};       // at random, so that no two devices that ever were have the same
  std::uint32_t iommu_root{};     // frame of the IOMMU's first table
  std::int32_t accessors_file{};  // descriptor of the table of accessors (local/accessors.h) + 1;
                                  // 0: peers of this host are not let in
  std::int32_t rings_file{};      // likewise of the rings for their messages (local/ring_table.h)
  std::int32_t frames_file{};     // likewise of all frames of the device (os/frames/frame_file.h)
  std::uint64_t frames_at{};      // where those are in its process
};
static_assert(sizeof(TableHeader) == 232);

inline constexpr const char* kAccessorsName = "softhca-accessors";
inline constexpr const char* kRingsName = "softhca-rings";

// What the device said no to, as it was told on stderr or would have been: the last ones, in a
// ring.
struct RefusalRecord {
  std::uint64_t number{};  // from 1 on; 0: none yet
  char line[504]{};        // cut off where it does not fit
};
static_assert(sizeof(RefusalRecord) == 512);

class TableMemory {
 public:
  static constexpr std::uint64_t kTranslations = std::uint64_t{1}
                                                 << 24;  // 64 GiB of scattered pages
  static constexpr std::uint64_t kIommuBytes = std::uint64_t{256}
                                               << 20;  // tables of 128 GiB in 4 KiB leaves

  static constexpr std::uint64_t kRefusals = 32;

  // What it takes in all.
  static std::uint64_t bytes_needed();

  // Lays zeroed memory out. OWNS nothing. REQUIRES: bytes_needed() of it, page aligned.
  explicit TableMemory(Bytes memory);

  TableHeader& header() { return *reinterpret_cast<TableHeader*>(memory_.data()); }
  std::span<std::uint64_t> counters();
  std::span<RefusalRecord> refusals();
  nic::Tables tables();
  Bytes iommu();

 private:
  Bytes memory_;
};

// A section of somebody's tables; empty if the header does not describe one that fits. Every
// number in it is checked: it is another process's memory.
bool is_table_memory(ConstBytes memory, TableHeader& header);

}  // namespace softhca::driver
