#include "cli/ledger.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/prng.h"

namespace softhca::cli {
namespace {

// As the library writes them, each counter with a value of its own.
std::string line_of(int pid, std::string_view program, std::uint64_t factor) {
  nlohmann::json counters;
  for (const trace::CounterInfo& row : trace::kCounters)
    counters[std::string(row.name)] = (static_cast<std::uint64_t>(row.counter) + 1) * factor;
  const nlohmann::json line = {{"pid", pid},
                               {"program", program},
                               {"device", "softhca0"},
                               {"interface", "lo"},
                               {"pin", "io_uring"},
                               {"memory", {{"regions", 2}, {"bytes", 8192}}},
                               {"counters", counters},
                               {"first_region",
                                {{"virtual", "0x7f0012345000"},
                                 {"bus", "0x4a0000001000"},
                                 {"bytes", 4096},
                                 {"pages", 1},
                                 {"leaves", 1}}}};
  return line.dump();
}

LedgerEntry entry_of(int pid, std::string_view program, std::uint64_t factor) {
  const auto entry = parse_ledger_line(line_of(pid, program, factor));
  EXPECT_TRUE(entry);
  return *entry;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string line_with(const std::string& text, std::string_view words) {
  for (const std::string& line : lines_of(text))
    if (line.find(words) != std::string::npos) return line;
  return "";
}

constexpr std::string_view kTitles[] = {"Application",     "Allocate memory", "Virtual address",
                                        "Physical memory", "Register buffer", "Pin",
                                        "IOMMU",           "NIC DMA engine",  "PCIe",
                                        "Ethernet",        "Summary"};

TEST(Ledger, ReadsALineAndItsCountersByName) {
  const LedgerEntry entry = entry_of(7, "ib_send_lat", 3);
  EXPECT_EQ(entry.pid, 7);
  EXPECT_EQ(entry.program, "ib_send_lat");
  EXPECT_EQ(entry.pin, "io_uring");
  EXPECT_EQ(entry.regions, 2u);
  ASSERT_TRUE(entry.first_region);
  EXPECT_EQ(entry.first_region->bus_address, "0x4a0000001000");
  EXPECT_EQ(entry.first_region->leaves, 1u);
  EXPECT_EQ(entry.first_region->leaf_bytes, std::nullopt);
  for (std::size_t c = 0; c < trace::kCounterCount; ++c) EXPECT_EQ(entry.counters[c], (c + 1) * 3);
}

TEST(Ledger, RefusesWhatIsNoLedgerLine) {
  for (const char* line : {"", "{", "[]", "7", "{\"pid\":1}", "{\"counters\":[]}"})
    EXPECT_FALSE(parse_ledger_line(line)) << line;
}

TEST(Ledger, TakesMissingAndOddMembersAsAbsent) {
  const auto entry =
      parse_ledger_line(R"({"pid":"x","program":5,"memory":7,)"
                        R"("counters":{"doorbells":-1,"dma_reads":1.5,"cqes_written":4}})");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->program, "");
  EXPECT_EQ(entry->counters[static_cast<std::size_t>(trace::Counter::Doorbells)], std::nullopt);
  EXPECT_EQ(entry->counters[static_cast<std::size_t>(trace::Counter::DmaReads)], std::nullopt);
  EXPECT_EQ(entry->counters[static_cast<std::size_t>(trace::Counter::CqesWritten)], 4u);
  EXPECT_FALSE(entry->first_region);
  EXPECT_TRUE(line_with(ledger_text({*entry}), "doorbells rung").ends_with(" -"));
}

TEST(Ledger, PassesNoControlCharacterToTheTerminal) {
  const auto entry = parse_ledger_line(R"({"program":"a\u001b[2Jb","counters":{}})");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->program, "a?[2Jb");
}

TEST(Ledger, ShowsTheTitlesInTheOrderInWhichAByteTravels) {
  const std::string text = ledger_text({entry_of(1, "a", 1), entry_of(2, "b", 2)});
  std::size_t at = 0;
  for (const std::string_view title : kTitles) {
    const auto found = text.find(fmt::format("\n{}\n", title), at);
    ASSERT_NE(found, std::string::npos) << title;
    at = found;
  }
}

TEST(Ledger, FitsEightyColumnsAndAboutAScreenAndAHalf) {
  for (int processes = 1; processes <= 5; ++processes) {
    std::vector<LedgerEntry> entries;
    for (int pid = 1; pid <= processes; ++pid)
      entries.push_back(entry_of(pid, "a_long_program_name", std::uint64_t{1} << 50));
    const auto lines = lines_of(ledger_text(entries));
    EXPECT_LE(lines.size(), 64u);
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(Ledger, PutsTwoProcessesSideBySide) {
  const std::string text = ledger_text({entry_of(11, "client", 1), entry_of(22, "server", 1000)});
  EXPECT_NE(line_with(text, "pid 11").find("pid 22"), std::string::npos);
  EXPECT_NE(line_with(text, "client").find("server"), std::string::npos);
  const std::uint64_t doorbells = static_cast<std::uint64_t>(trace::Counter::Doorbells) + 1;
  const std::string row = line_with(text, "doorbells rung");
  EXPECT_NE(row.find(fmt::format(" {} ", doorbells)), std::string::npos) << row;
  EXPECT_TRUE(row.ends_with(fmt::format(" {},000", doorbells))) << row;
}

TEST(Ledger, AddsUpAProcessThatOpenedTheDeviceTwice) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng prng(seed);
    std::vector<LedgerEntry> entries;
    std::uint64_t expected[3] = {};
    for (int n = 0; n < 10; ++n) {
      const auto pid = prng.below(3);
      const auto factor = prng.below(1000);
      entries.push_back(entry_of(static_cast<int>(pid), "p", factor));
      expected[pid] += factor;
    }
    for (const LedgerEntry& sum : added_up(entries)) {
      EXPECT_EQ(sum.counters[0], expected[sum.pid]) << seed;
      EXPECT_EQ(sum.counters[5], 6 * expected[sum.pid]) << seed;
    }
  }
}

TEST(Ledger, ShowsManyProcessesAsTheirSum) {
  std::vector<LedgerEntry> entries;
  for (int pid = 1; pid <= 9; ++pid) entries.push_back(entry_of(pid, "p", 1));
  const std::string text = ledger_text(entries);
  EXPECT_NE(line_with(text, "9 processes"), "");
  EXPECT_TRUE(line_with(text, "buffers registered").ends_with(" 9"));
}

TEST(Ledger, SumsUpWhatDmaMovedAndWhatTheCpuCopied) {
  const LedgerEntry entry = entry_of(1, "p", 1);
  const auto of = [&](trace::Counter c) { return *entry.counters[static_cast<std::size_t>(c)]; };
  const std::string text = ledger_text({entry});
  const std::uint64_t dma = of(trace::Counter::DmaReadBytes) + of(trace::Counter::DmaWriteBytes);
  EXPECT_TRUE(line_with(text, "bytes moved by DMA").ends_with(std::to_string(dma)));
  EXPECT_TRUE(line_with(text, "bytes copied by the CPU")
                  .ends_with(std::to_string(of(trace::Counter::CpuCopyBytes))));
  EXPECT_NE(line_with(text, "kernel's UDP stack"), "");

  const auto json = nlohmann::json::parse(ledger_json({entry, entry}));
  EXPECT_EQ(json["summary"]["dma_bytes"], 2 * dma);
  EXPECT_EQ(json["processes"].size(), 1u);
  EXPECT_EQ(json["processes"][0]["counters"]["doorbells"], 2 * of(trace::Counter::Doorbells));
}

}  // namespace
}  // namespace softhca::cli
