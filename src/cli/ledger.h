// Ledger: what a run took, step by step, for people who have never seen RDMA.
//
// The library appends one line of JSON to SOFTHCA_LEDGER when a process closes a device; this
// reads them and lays the figures of several processes side by side, in the order in which a byte
// travels: from the program to the wire.
//
// See also  driver/, which writes the lines; trace/counters.h, whose names are used
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "trace/counters.h"

namespace softhca::cli {

// One buffer as an example of its three addresses. Texts are as written ("0x7f00..."), "" if not.
struct LedgerRegion {
  std::string virtual_address;
  std::string bus_address;
  std::uint64_t bytes{};
  std::uint64_t pages{};
  std::optional<std::uint64_t> leaf_bytes;  // of an IOMMU entry, if all are of one size
  std::optional<std::uint64_t> leaves;      // IOMMU entries that map it
};

struct LedgerEntry {
  std::int64_t pid{};
  std::string program;
  std::string device;
  std::string interface;
  std::string pin;  // "io_uring", "mlock", "counted"
  std::optional<LedgerRegion> first_region;
  // By trace::Counter; nothing where the line does not say.
  std::array<std::optional<std::uint64_t>, trace::kCounterCount> counters{};
  std::optional<std::uint64_t> regions;  // of "memory"
  std::optional<std::uint64_t> bytes;
};

// One line. FAILS WITH what is wrong with it.
Result<LedgerEntry, std::string> parse_ledger_line(std::string_view line);

// A process that opened a device more than once is one entry: its figures added up. Keeps order.
std::vector<LedgerEntry> added_up(const std::vector<LedgerEntry>& entries);

// The page. REQUIRES: at least one entry. Beyond kLedgerColumns processes one column is their sum.
inline constexpr std::size_t kLedgerColumns = 3;
std::string ledger_text(const std::vector<LedgerEntry>& entries);

// The same figures for machines: {"processes":[...],"summary":{...}}.
std::string ledger_json(const std::vector<LedgerEntry>& entries);

}  // namespace softhca::cli
