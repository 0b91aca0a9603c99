// The steps up to the device's memory: application, MMU, frames, registration, pins, IOMMU.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "sim/telling.h"
#include "trace/words.h"

namespace softhca::sim {

using trace::bytes_text;
using trace::counted;
using trace::EventKind;
using trace::grouped;
using trace::hex;

namespace {

constexpr std::size_t kPagesShown = 3;
constexpr std::size_t kEventsShown = 12;

std::string name_of(const Transfer& transfer, const TransferEnd& end) {
  return &end == &transfer.client ? "client" : "server";
}

Step step_of(const Transfer& transfer, const TransferEnd& end, std::string title) {
  Step step;
  step.title = std::move(title);
  step.host = name_of(transfer, end);
  return step;
}

std::uint64_t pages_of(const Transfer& transfer) {
  const JourneySettings& s = transfer.settings();
  return (s.offset + s.bytes + s.page_bytes - 1) / s.page_bytes;
}

void add_events(Step& step, const Heard& heard, const TransferEnd& end, EventKind kind) {
  const Heard::Kind& events = heard.of(end.number(), kind);
  for (std::size_t i = 0; i < std::min(events.first.size(), kEventsShown); ++i)
    step.details.push_back(trace::event_text(events.first[i]));
  if (events.count > kEventsShown)
    step.details.push_back(fmt::format("... and {} more {}", grouped(events.count - kEventsShown),
                                       trace::kEvents[static_cast<std::size_t>(kind)].name));
}

std::string bytes_shown(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes.first(std::min<std::size_t>(bytes.size(), 8)))
    text += fmt::format("{:02x} ", std::to_integer<unsigned>(b));
  return text + (bytes.size() > 8 ? "..." : "");
}

// "PML4 170, PDPT 341, PD 0, PT 17, offset 0x64"
std::string indexes_text(VirtAddr at, std::uint64_t page_bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"", "PT", "PD", "PDPT", "PML4"};
  std::string text;
  for (unsigned level = 4; level >= 1 && host::pte::page_bytes(level) >= page_bytes; --level)
    text += fmt::format("{} {}, ", kNames[level], host::pte::index(at, level));
  return text + fmt::format("offset {:#x}", offset_in(at, page_bytes));
}

std::string move_text(host::MoveAnswer answer) {
  switch (answer) {
    case host::MoveAnswer::Done:
      return "done";
    case host::MoveAnswer::Pinned:
      return "refused: a device has the frame";
    case host::MoveAnswer::NotThere:
      return "nothing is there";
    case host::MoveAnswer::NoRoom:
      return "no room";
    case host::MoveAnswer::NotMovable:
      return "huge pages are not swapped";
  }
  return "";
}

std::vector<pcie::Span> frames_of(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  const VirtAddr first = align_down(end.start, kPage4K);
  const std::uint64_t bytes =
      pages_touched(Range<VirtSpace>{end.start, s.bytes}, kPage4K) * kPage4K;
  return end.host->kernel().frames_of(end.pid, {first, bytes});
}

}  // namespace

Step tell_application(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Application");
  const std::string bytes = counted(s.bytes, "byte");
  switch (s.operation) {
    case Operation::Write:
      step.told = fmt::format(
          "A program has {} that belong into the memory of a program on another machine. It will"
          " write them there itself: the other program need not do anything (RDMA WRITE).",
          bytes);
      break;
    case Operation::Read:
      step.told = fmt::format(
          "A program wants {} that lie in the memory of a program on another machine. It will"
          " fetch them itself: the other program need not do anything (RDMA READ).",
          bytes);
      break;
    case Operation::Send:
      step.told = fmt::format(
          "A program has {} for a program on another machine, which has said where it wants what"
          " comes next (SEND and RECEIVE).",
          bytes);
      break;
  }
  const host::Kernel& kernel = end.host->kernel();
  step.facts = {{"program", fmt::format("{}, pid {}, beside {} others", kernel.name_of(end.pid),
                                        end.pid.value, kernel.programs() - 1)}};
  if (&end == &transfer.source()) step.facts.push_back({"bytes", bytes_shown(end.before)});
  return step;
}

Step tell_allocation(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Allocate memory");
  const host::Region* const region = end.host->kernel().program(end.pid).region_at(end.start);
  const std::uint64_t faults = end.allocated.count(end.number(), EventKind::PageFault);
  step.told = fmt::format("It asks its kernel for {}. The kernel promises {} of {}, and {}.",
                          bytes_text(s.bytes), counted(pages_of(transfer), "page"),
                          bytes_text(s.page_bytes),
                          faults == 0 ? "puts nothing behind them yet" : "fills them at once");
  if (region != nullptr)
    step.facts = {
        {"addresses", fmt::format("{} to {}", hex(align_down(end.start, s.page_bytes).value),
                                  hex(region->end - 1))}};
  return step;
}

Step tell_virtual_address(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Virtual address");
  step.told = fmt::format(
      "The buffer begins at {}: a number that means something to this program alone. The"
      " processor reads it as indexes into tables, and an offset.",
      hex(end.start.value));
  step.facts = {{"read as", indexes_text(end.start, s.page_bytes)}};
  return step;
}

Step tell_mmu(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "MMU");
  const Heard::Kind& faults = end.touched.of(end.number(), EventKind::PageFault);
  const host::PageWalk walk = end.host->kernel().walk(end.pid, end.start);
  if (faults.count != 0)
    step.told = fmt::format(
        "The program's first touch of each page is a page fault ({} in all): the kernel finds a"
        " frame of memory, fills it with zeros, and notes it in the table. From then on the MMU"
        " finds the way by itself: {}, and the TLB remembers where they led.",
        grouped(faults.count), counted(walk.steps_made, "table entry"));
  else
    step.told = "The pages were there already; the MMU finds them without a page fault.";
  if (!faults.first.empty())
    step.facts.push_back(
        {"first fault", fmt::format("at {}, error code {:#x} (user, {})",
                                    hex(faults.first[0].fields[0]), faults.first[0].fields[1],
                                    (faults.first[0].fields[1] & 2) != 0 ? "write, not present"
                                                                         : "read, not present")});
  std::string way;
  for (unsigned i = 0; i < walk.steps_made; ++i)
    way += fmt::format("{}{}", i == 0 ? "" : " > ",
                       hex(host::pte::address(walk.steps[i].value).value));
  step.facts.push_back(
      {"the walk",
       fmt::format("{} > {}", hex(end.host->kernel().program(end.pid).table.root().value), way)});
  for (unsigned i = 0; i < walk.steps_made; ++i)
    step.details.push_back(fmt::format("level {}: entry at physical {} holds {:#018x}",
                                       walk.steps[i].level, hex(walk.steps[i].entry_at.value),
                                       walk.steps[i].value));
  add_events(step, end.touched, end, EventKind::PageFault);
  add_events(step, end.touched, end, EventKind::MmuWalk);
  return step;
}

Step tell_frames(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Physical memory");
  const std::vector<pcie::Span> spans = frames_of(transfer, end);
  const std::uint64_t pages = pages_of(transfer);
  if (spans.size() == 1)
    step.told =
        fmt::format("Behind the {} lies one stretch of physical memory.", counted(pages, "page"));
  else
    step.told = fmt::format(
        "{} that follow each other for the program lie in {} different places of physical memory;"
        " what is next to them belongs to others.",
        counted(pages, "page"), grouped(spans.size()));
  const host::Kernel& kernel = end.host->kernel();
  VirtAddr page = align_down(end.start, kPage4K);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::string line = fmt::format("{} is at {} ({})", hex(page.value),
                                         hex(spans[i].start.value), bytes_text(spans[i].bytes));
    const std::string next =
        "; behind it: " + kernel.owner_text(advance(spans[i].start, spans[i].bytes));
    if (i < kPagesShown)
      step.facts.push_back({i == 0 ? "frames" : "", i == 0 ? line + next : line});
    else if (i < kPagesShown + kEventsShown)
      step.details.push_back(line);
    page = advance(page, spans[i].bytes);
  }
  if (spans.size() > kPagesShown)
    step.facts.push_back({"", fmt::format("... and {} more", grouped(spans.size() - kPagesShown))});
  if (end.host->kernel().frames().used(host::FrameUse::Program) != 0)
    step.details.push_back(fmt::format(
        "frames of 4 KiB: {} of programs, {} of page tables, {} free; fragmentation {}%",
        grouped(kernel.frames().used(host::FrameUse::Program)),
        grouped(kernel.frames().used(host::FrameUse::PageTable)),
        grouped(kernel.frames().free_frames()), s.fragmentation));
  return step;
}

Step tell_registration(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Register buffer");
  if (end.refused) {
    step.told = "The kernel does not let the device have it.";
    step.facts = {{"why", trace::reason_text(end.refused)}};
    step.refused = true;
    return step;
  }
  const nic::KeyRecord& record = end.host->tables().keys[end.key.index()];
  std::string rights = "local read";
  if ((record.access & 1) != 0) rights += ", local write";
  if ((record.access & 4) != 0) rights += ", remote read";
  if ((record.access & 2) != 0) rights += ", remote write";
  step.told =
      "The program hands the buffer to its NIC: one call into the kernel (ibv_reg_mr), the only"
      " one of this story. The NIC's table gets an entry, and the program a key that names it.";
  step.facts = {
      {"key", fmt::format("{}: entry {}, variant {:#x}; protection domain {}", hex(end.key.value),
                          end.key.index(), record.variant, record.pd)},
      {"entry",
       fmt::format("{} bytes from {}; {}", grouped(record.bytes), hex(record.start), rights)}};
  add_events(step, end.registered, end, EventKind::Register);
  return step;
}

Step tell_pins(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Pin");
  const Heard::Kind& pins = end.registered.of(end.number(), EventKind::Pin);
  const std::uint64_t kept = end.moved.count(end.number(), EventKind::FrameKept);
  step.told = fmt::format(
      "The device will use these frames at times of its own choosing, so the kernel pins them: {}"
      " stay where they are. {}",
      counted(pins.sums[1], "page"),
      kept != 0 ? "The kernel has tried to move one all the same:"
                : "The kernel has tried to move one:");
  step.facts = {{"move it elsewhere", move_text(end.attempts.migrate)},
                {"swap it out", move_text(end.attempts.swap_out)},
                {"compact memory", fmt::format("{} moved, {} kept their place",
                                               grouped(end.attempts.compaction.moved),
                                               grouped(end.attempts.compaction.kept))}};
  step.details.push_back(
      fmt::format("pinned on this host: {}", counted(end.host->pins().pages_held(), "page")));
  add_events(step, end.registered, end, EventKind::Pin);
  add_events(step, end.moved, end, EventKind::FrameKept);
  return step;
}

}  // namespace softhca::sim
