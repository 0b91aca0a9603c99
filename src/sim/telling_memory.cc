// The steps up to the device's memory: application, MMU, frames, registration, pins, IOMMU.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "sim/constants.h"
#include "sim/telling.h"
#include "trace/words.h"

namespace softhca::sim {

using trace::bytes_text;
using trace::counted;
using trace::EventKind;
using trace::grouped;
using trace::hex;

namespace {

constexpr std::size_t kPagesShown = 3;  // and fewer the second time
constexpr std::size_t kPagesShownAgain = 1;
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

std::string bytes_shown(const Pattern& pattern, std::uint64_t bytes) {
  constexpr std::uint64_t kShown = 8;
  std::vector<std::byte> first(std::min(bytes, kShown));
  pattern.write(0, first);
  std::string text;
  for (const std::byte b : first) text += fmt::format("{:02x} ", std::to_integer<unsigned>(b));
  return text + (bytes > kShown ? "..." : "");
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
      return "refused, pinned";
    case host::MoveAnswer::NotThere:
      return "nothing is there";
    case host::MoveAnswer::NoRoom:
      return "no room";
    case host::MoveAnswer::NotMovable:
      return "not done with huge pages";
  }
  return "";
}

// The server's side is told second, and shorter.
bool is_again(const Transfer& transfer, const TransferEnd& end) { return &end == &transfer.server; }

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
          "{} here belong into the memory of a program on another machine, which need not do"
          " anything for that: RDMA WRITE.",
          bytes);
      break;
    case Operation::Read:
      step.told = fmt::format(
          "{} in the memory of a program on another machine are wanted here; that program need not"
          " do anything for that: RDMA READ.",
          bytes);
      break;
    case Operation::Send:
      step.told = fmt::format(
          "{} are for a program on another machine, which has said where it wants what comes next:"
          " SEND and RECEIVE.",
          bytes);
      break;
  }
  const host::Kernel& kernel = end.host->kernel();
  step.facts = {{"program", fmt::format("{}, pid {}, beside {} others", kernel.name_of(end.pid),
                                        end.pid.value, kernel.programs() - 1)}};
  if (&end == &transfer.source()) step.facts.push_back({"bytes", bytes_shown(end.before, s.bytes)});
  return step;
}

Step tell_allocation(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Allocate memory");
  if (end.host->is_on_gpu(end.start)) {
    step.told = fmt::format("{} of the GPU's own memory, from {} on.", bytes_text(s.bytes),
                            hex(align_down(end.start, kPage4K).value));
    return step;
  }
  const std::uint64_t faults = end.allocated.count(end.number(), EventKind::PageFault);
  const std::string pages = counted(pages_of(transfer), "page") + " of " + bytes_text(s.page_bytes);
  const std::string first = hex(align_down(end.start, s.page_bytes).value);
  step.told =
      is_again(transfer, end)
          ? fmt::format("{}, from {} on.", pages, first)
          : fmt::format(
                "It asks its kernel for {} and is promised {}, from {} on. {} behind them"
                " yet.",
                bytes_text(s.bytes), pages, first, faults == 0 ? "Nothing is" : "Memory is");
  if (const host::Region* const region = end.host->kernel().program(end.pid).region_at(end.start))
    step.details = {fmt::format("region {} to {}", first, hex(region->end - 1))};
  return step;
}

Step tell_virtual_address(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Virtual address");
  step.told =
      is_again(transfer, end)
          ? fmt::format("To the server's program the buffer begins at {}:", hex(end.start.value))
          : fmt::format(
                "The buffer begins at {}, a number with a meaning to this program alone. Its"
                " processor takes it apart:",
                hex(end.start.value));
  step.facts = {{"indexes", indexes_text(end.start, transfer.settings().page_bytes)}};
  return step;
}

Step tell_mmu(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "MMU");
  if (end.host->is_on_gpu(end.start)) {
    step.told = "No page of the kernel's is involved: the GPU's driver has mapped its BAR there.";
    return step;
  }
  const Heard::Kind& faults = end.touched.of(end.number(), EventKind::PageFault);
  const host::PageWalk walk = end.host->kernel().walk(end.pid, end.start);
  if (faults.count == 0)
    step.told = "The pages were there already, and the MMU finds them without a page fault:";
  else if (is_again(transfer, end))
    step.told = fmt::format("{} when the program first touched them; since then the way is:",
                            counted(faults.count, "page fault"));
  else
    step.told = fmt::format(
        "The first touch of each page is a page fault ({} in all): the kernel finds a frame of"
        " RAM, zeroes it and enters it in the table. Now the MMU finds the way by itself:",
        grouped(faults.count));
  std::string way = hex(end.host->kernel().program(end.pid).table.root().value);
  for (unsigned i = 0; i < walk.steps_made; ++i)
    way += " > " + hex(host::pte::address(walk.steps[i].value).value);
  step.facts.push_back({"table walk", way});
  for (unsigned i = 0; i < walk.steps_made; ++i)
    step.details.push_back(fmt::format("level {}: entry at physical {} holds {:#018x}",
                                       walk.steps[i].level, hex(walk.steps[i].entry_at.value),
                                       walk.steps[i].value));
  if (!faults.first.empty())
    step.details.push_back(
        fmt::format("error code {:#x} of the first fault: {}{}{}", faults.first[0].fields[1],
                    (faults.first[0].fields[1] & 1) != 0 ? "protection" : "not present",
                    (faults.first[0].fields[1] & 2) != 0 ? ", write" : ", read",
                    (faults.first[0].fields[1] & 4) != 0 ? ", user" : ""));
  step.details.push_back(fmt::format(
      "priced, not measured: {} for the first touches",
      trace::time_text(cost_of(Constant::TouchPage) * static_cast<std::int64_t>(faults.count))));
  add_events(step, end.touched, end, EventKind::PageFault);
  add_events(step, end.touched, end, EventKind::MmuWalk);
  return step;
}

Step tell_frames(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Physical memory");
  if (end.host->is_on_gpu(end.start)) {
    const Range<PhysSpace> bar = end.host->gpu_bar();
    step.told = "The bytes lie in the GPU; on the bus its memory is found in a window, a BAR:";
    step.facts = {{"GPU 02:00.0",
                   fmt::format("BAR 1 at {}, {}", hex(bar.start.value), bytes_text(bar.length))}};
    return step;
  }
  const std::vector<pcie::Span> spans = frames_of(transfer, end);
  const std::uint64_t pages = pages_of(transfer);
  step.told =
      spans.size() == 1
          ? fmt::format("{} {} one piece of RAM:", counted(pages, "page"),
                        pages == 1 ? "is" : "are")
          : fmt::format("{} in a row for the program {} {} pieces of RAM, anywhere:",
                        counted(pages, "page"), pages == 1 ? "is" : "are", grouped(spans.size()));
  const host::Kernel& kernel = end.host->kernel();
  const std::size_t shown = is_again(transfer, end) ? kPagesShownAgain : kPagesShown;
  VirtAddr page = align_down(end.start, kPage4K);
  for (std::size_t i = 0; i < std::min(spans.size(), shown + kEventsShown); ++i) {
    const PhysAddr behind = advance(spans[i].start, spans[i].bytes);
    const std::string line = fmt::format("{} > {}, {}", hex(page.value), hex(spans[i].start.value),
                                         bytes_text(spans[i].bytes));
    if (i < shown) step.facts.push_back({i == 0 ? "frames" : "", line});
    step.details.push_back(line + "; behind it: " + kernel.owner_text(behind));
    page = advance(page, spans[i].bytes);
  }
  if (spans.size() > shown && !step.facts.empty())
    step.facts.back().value += fmt::format(", and {} more", grouped(spans.size() - shown));
  step.details.push_back(
      fmt::format("frames of 4 KiB: {} of programs, {} of page tables, {} free; fragmentation {}%",
                  grouped(kernel.frames().used(host::FrameUse::Program)),
                  grouped(kernel.frames().used(host::FrameUse::PageTable)),
                  grouped(kernel.frames().free_frames()), transfer.settings().fragmentation));
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
  std::string rights = "read";
  if ((record.access & 1) != 0) rights += ", write";
  if ((record.access & 4) != 0) rights += ", remote read";
  if ((record.access & 2) != 0) rights += ", remote write";
  step.told =
      is_again(transfer, end)
          ? "Long before, the server's program had registered its buffer, and told the client where"
            " it is and the key:"
          : "One call into the kernel hands the buffer to the NIC (ibv_reg_mr); no other is needed"
            " in this story. The NIC's table has an entry now, and the program the key to it:";
  step.facts = {
      {"key " + hex(end.key.value),
       fmt::format("{} from {}; {}", counted(record.bytes, "byte"), hex(record.start), rights)}};
  step.details.push_back(
      fmt::format("priced, not measured: {} of processor time",
                  trace::time_text(cost_of(Constant::RegisterFixed) +
                                   cost_of(Constant::RegisterPage) *
                                       static_cast<std::int64_t>(end.bus_pages.size()))));
  step.details.push_back(fmt::format("entry {}, variant {:#x}, protection domain {}",
                                     end.key.index(), record.variant, record.pd));
  add_events(step, end.registered, end, EventKind::Register);
  return step;
}

Step tell_pins(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Pin");
  if (end.host->is_on_gpu(end.start)) {
    step.told = "The GPU's driver keeps the buffer where it is for as long as it is registered.";
    add_events(step, end.registered, end, EventKind::Pin);
    return step;
  }
  const Heard::Kind& pins = end.registered.of(end.number(), EventKind::Pin);
  const std::string pages = counted(pins.sums[1], "page");
  step.told = is_again(transfer, end)
                  ? fmt::format("{} pinned here too. What the kernel tried with the first:", pages)
                  : fmt::format(
                        "The device will look for the frames where they are now, so they must"
                        " stay: {} pinned. What the kernel tried with the first of them:",
                        pages);
  step.facts = {
      {"attempts",
       fmt::format("migrate: {}; swap out: {}; compact: {} moved, {} kept",
                   move_text(end.attempts.migrate), move_text(end.attempts.swap_out),
                   grouped(end.attempts.compaction.moved), grouped(end.attempts.compaction.kept))}};
  step.details.push_back(
      fmt::format("pinned on this host: {}", counted(end.host->pins().pages_held(), "page")));
  add_events(step, end.registered, end, EventKind::Pin);
  add_events(step, end.moved, end, EventKind::FrameKept);
  return step;
}

}  // namespace softhca::sim
