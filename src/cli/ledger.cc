#include "cli/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <tuple>

#include "base/assert.h"
#include "cli/table.h"

namespace softhca::cli {
namespace {

using trace::Counter;
using Figure = std::optional<std::uint64_t>;

constexpr std::size_t kWidth = 80;
constexpr std::size_t kIndent = 4;
constexpr std::size_t kColumn = 15;  // of a process; the words of a row get what is left

Figure counter(const LedgerEntry& entry, Counter which) {
  return entry.counters[static_cast<std::size_t>(which)];
}

// Nothing only if there is neither.
Figure sum(Figure a, Figure b) { return a || b ? Figure(a.value_or(0) + b.value_or(0)) : Figure(); }

Figure dma_bytes(const LedgerEntry& entry) {
  return sum(counter(entry, Counter::DmaReadBytes), counter(entry, Counter::DmaWriteBytes));
}

std::string figure_text(Figure figure) { return figure ? grouped(*figure) : "-"; }
std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

// A row: its words, and what stands under a process.
struct Row {
  std::string words;
  std::function<std::string(const LedgerEntry&)> cell;
};

struct Chapter {
  std::string_view title;
  std::string_view story;
  std::vector<Row> rows;
};

Row count(std::string words, Counter which) {
  return {std::move(words), [which](auto& entry) { return figure_text(counter(entry, which)); }};
}

Row total(std::string words, Counter one, Counter other) {
  return {std::move(words), [one, other](auto& entry) {
            return figure_text(sum(counter(entry, one), counter(entry, other)));
          }};
}

Row of_first_region(std::string words, std::function<std::string(const LedgerRegion&)> cell) {
  return {std::move(words), [cell = std::move(cell)](auto& entry) {
            return entry.first_region ? or_dash(cell(*entry.first_region)) : "-";
          }};
}

std::vector<Chapter> program_chapters() {
  return {
      {"Application",
       "The program asks for a transfer: it writes a short descriptor and rings a doorbell. Then "
       "it is free; a completion tells it when the transfer is over.",
       {count("descriptors fetched", Counter::WqesFetched),
        count("doorbells rung", Counter::Doorbells),
        count("completions written", Counter::CqesWritten)}},
      {"Allocate memory",
       "What is sent or received lies in ordinary memory of the program: its buffers.",
       {{"buffers",
         [](auto& e) {
           return figure_text(e.regions ? e.regions : counter(e, Counter::RegionsRegistered));
         }},
        {"bytes in them",
         [](auto& e) {
           return figure_text(e.bytes ? e.bytes : counter(e, Counter::BytesRegistered));
         }}}},
      {"Virtual address",
       "The program knows a buffer by a number that only this program understands.",
       {of_first_region("first buffer starts at", [](auto& r) { return r.virtual_address; })}},
      {"Physical memory",
       "Behind it is RAM in pages of 4096 bytes. Neighbours in the buffer are seldom neighbours "
       "in RAM, and the operating system may move them.",
       {total("pages behind the buffers", Counter::PagesPinned, Counter::PagesCountedNotPinned)}},
      {"Register buffer",
       "Start, size and permissions go into the device's table under a key. Each access is "
       "checked against it, byte by byte.",
       {count("buffers registered", Counter::RegionsRegistered),
        count("accesses checked", Counter::KeyChecks),
        count("accesses refused", Counter::KeyRefusals)}},
      {"Pin",
       "The kernel is asked to keep the pages in place while the device uses them.",
       {count("pages pinned", Counter::PagesPinned),
        count("pages only counted", Counter::PagesCountedNotPinned),
        {"pinned by means of", [](auto& e) { return or_dash(e.pin); }}}},
  };
}

std::vector<Chapter> device_chapters() {
  return {
      {"IOMMU",
       "The device uses addresses of its own. The IOMMU translates them to pages, and blocks what "
       "was not mapped for this device.",
       {of_first_region("first buffer, for the device", [](auto& r) { return r.bus_address; }),
        count("entries mapped, queues included", Counter::IommuLeavesMapped),
        total("translations", Counter::IotlbHits, Counter::IotlbMisses),
        count("accesses blocked", Counter::IommuFaults)}},
      {"NIC DMA engine",
       "The device moves the bytes itself: reads what is sent, writes what arrives.",
       {count("bytes read, with descriptors", Counter::DmaReadBytes),
        count("bytes written, with completions", Counter::DmaWriteBytes)}},
      {"PCIe",
       "Between device and memory the bytes travel over PCIe in small packets (TLPs).",
       {count("read requests", Counter::TlpMemoryReads),
        count("replies with data", Counter::TlpCompletions),
        count("write requests", Counter::TlpMemoryWrites)}},
      {"Ethernet",
       "Between hosts they travel as RoCEv2 packets; what is lost is sent again.",
       {count("packets sent", Counter::PacketsSent),
        count("packets received", Counter::PacketsReceived),
        count("bytes sent, headers included", Counter::PacketBytesSent),
        count("packets sent again", Counter::Retransmits),
        count("requests without packets", Counter::DirectRequests)}},
  };
}

// One entry that stands for many. Texts in which they differ are left out.
LedgerEntry sum_of(std::span<const LedgerEntry> entries) {
  LedgerEntry all = entries[0];
  for (const LedgerEntry& entry : entries.subspan(1)) {
    for (std::size_t c = 0; c < all.counters.size(); ++c)
      all.counters[c] = sum(all.counters[c], entry.counters[c]);
    all.regions = sum(all.regions, entry.regions);
    all.bytes = sum(all.bytes, entry.bytes);
    if (all.pin != entry.pin) all.pin = "several";
    if (all.interface != entry.interface) all.interface = "several";
    if (!all.first_region) all.first_region = entry.first_region;
  }
  return all;
}

class Page {
 public:
  explicit Page(std::vector<LedgerEntry> columns) : columns_(std::move(columns)) {}

  void line(std::string_view text) { text_ += fmt::format("{}\n", text); }

  void row(std::string_view words, const std::function<std::string(const LedgerEntry&)>& cell) {
    const std::size_t words_width = kWidth - kIndent - columns_.size() * kColumn;
    std::string out = fmt::format("{:{}}{:<{}}", "", kIndent, words, words_width);
    for (const LedgerEntry& entry : columns_) {
      std::string text = cell(entry);
      if (text.size() >= kColumn) text.resize(kColumn - 1);
      out += fmt::format("{:>{}}", text, kColumn);
    }
    line(out);
  }

  void chapter(const Chapter& chapter) {
    line(chapter.title);
    line(wrapped(chapter.story, kWidth, 2));
    for (const Row& one : chapter.rows) row(one.words, one.cell);
  }

  std::string text() const { return text_; }

 private:
  std::vector<LedgerEntry> columns_;
  std::string text_;
};

void add_summary(Page& page) {
  page.line("");
  page.line("Summary");
  page.row("bytes moved by DMA", [](auto& e) { return figure_text(dma_bytes(e)); });
  page.row("bytes copied by the CPU",
           [](auto& e) { return figure_text(counter(e, Counter::CpuCopyBytes)); });
  page.line(wrapped(
      "\"Copied by the CPU\" are copies that a hardware NIC would need too (inline data). Two "
      "things differ from hardware. The device is a program, so a CPU does the work that is "
      "counted as DMA. And the kernel's UDP stack stands in for the cable: it copies every packet "
      "on its way, which is not counted above.",
      kWidth, 2));
}

}  // namespace

std::vector<LedgerEntry> added_up(const std::vector<LedgerEntry>& entries) {
  std::vector<std::vector<LedgerEntry>> groups;
  std::map<std::tuple<std::int64_t, std::string, std::string>, std::size_t> place;
  for (const LedgerEntry& entry : entries) {
    const auto key = std::tuple(entry.pid, entry.program, entry.device);
    const auto [found, fresh] = place.try_emplace(key, groups.size());
    if (fresh) groups.emplace_back();
    groups[found->second].push_back(entry);
  }
  std::vector<LedgerEntry> sums;
  for (const auto& group : groups) sums.push_back(sum_of(group));
  return sums;
}

std::string ledger_text(const std::vector<LedgerEntry>& entries) {
  ASSERT(!entries.empty());
  std::vector<LedgerEntry> columns = added_up(entries);
  const std::size_t count = columns.size();
  if (count > kLedgerColumns) columns = {sum_of(columns)};
  Page page(columns);

  page.line("What this run took, in the order in which a byte travels");
  if (count > kLedgerColumns) {
    page.row("", [&](auto&) { return fmt::format("{} processes", count); });
  } else {
    page.row("", [](auto& e) { return or_dash(e.program); });
    page.row("", [](auto& e) { return fmt::format("pid {}", e.pid); });
    page.row("device", [](auto& e) { return or_dash(e.device); });
  }
  page.row("on the network interface", [](auto& e) { return or_dash(e.interface); });
  for (const auto& part : {program_chapters(), device_chapters()})
    for (const Chapter& chapter : part) page.chapter(chapter);
  add_summary(page);
  return page.text();
}

}  // namespace softhca::cli
