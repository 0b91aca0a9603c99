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

constexpr std::size_t kPagesShown = 3;
constexpr std::size_t kEventsShown = 12;

// The server's side is told second, and in brief.
bool is_again(const Transfer& transfer, const TransferEnd& end) { return &end == &transfer.server; }

Step step_of(const Transfer& transfer, const TransferEnd& end, std::string title) {
  const bool again = is_again(transfer, end);
  Step step = step_at(transfer, end, std::move(title),
                      again ? "Long before, the server had done the same (last first)"
                            : "Once, before any transfer");
  step.is_brief = again;
  return step;
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

std::vector<pcie::Span> frames_of(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  const VirtAddr first = align_down(end.start, kPage4K);
  const std::uint64_t bytes =
      pages_touched(Range<VirtSpace>{end.start, s.bytes}, kPage4K) * kPage4K;
  return end.host->kernel().frames_of(end.pid, {first, bytes});
}

}  // namespace

Step step_at(const Transfer& transfer, const TransferEnd& end, std::string title,
             std::string phase) {
  Step step;
  step.phase = std::move(phase);
  step.title = std::move(title);
  step.host = &end == &transfer.client ? "client" : "server";
  return step;
}

void add_events(Step& step, const Heard::Kind& events, std::size_t most) {
  for (std::size_t i = 0; i < std::min(events.first.size(), most); ++i)
    step.details.push_back(trace::event_text(events.first[i]));
  if (events.count <= most) return;
  const auto& row = trace::kEvents[static_cast<std::size_t>(events.last.kind)];
  step.details.push_back(fmt::format("... and {} more {}", grouped(events.count - most), row.name));
}

Step tell_application(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Application");
  switch (s.operation) {
    case Operation::Write:
      step.told = fmt::format(
          "{} to go into the memory of a program on another machine, which need not do anything for"
          " that (RDMA WRITE).",
          counted(s.bytes, "byte", "is", "are"));
      break;
    case Operation::Read:
      step.told = fmt::format(
          "{} wanted that {} in the memory of a program on another machine; that program need not"
          " do anything for that (RDMA READ).",
          counted(s.bytes, "byte", "is", "are"), s.bytes == 1 ? "lies" : "lie");
      break;
    case Operation::Send:
      step.told = fmt::format(
          "{} for a program on another machine, which has said where it wants what comes next (SEND"
          " and RECEIVE).",
          counted(s.bytes, "byte", "is", "are"));
      break;
  }
  const host::Kernel& kernel = end.host->kernel();
  step.details = {fmt::format("program {}, pid {}, on a machine with {} others",
                              kernel.name_of(end.pid), end.pid.value, kernel.programs() - 1)};
  return step;
}

Step tell_allocation(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Allocate memory");
  if (end.host->is_on_gpu(end.start)) {
    step.told = fmt::format("{} in the GPU's own memory", counted(s.bytes, "byte"));
    return step;
  }
  const std::uint64_t faults = end.allocated.count(end.number(), EventKind::PageFault);
  const std::string pages = counted(pages_of(s), "page") + " of " + bytes_text(s.page_bytes);
  const std::string first = hex(align_down(end.start, s.page_bytes).value);
  step.told = is_again(transfer, end)
                  ? fmt::format("{} from {} on", pages, first)
                  : fmt::format("The kernel promises {}, from {} on. {} behind them yet.", pages,
                                first, faults == 0 ? "Nothing is" : "Memory is");
  if (const host::Region* const region = end.host->kernel().program(end.pid).region_at(end.start))
    step.details = {fmt::format("region {} to {}", first, hex(region->end - 1))};
  return step;
}

Step tell_virtual_address(const Transfer& transfer, const TransferEnd& end) {
  const JourneySettings& s = transfer.settings();
  Step step = step_of(transfer, end, "Virtual address");
  if (end.host->is_on_gpu(end.start)) {
    step.told = hex(end.start.value) + ", where the GPU's driver shows its memory";
    return step;
  }
  const std::string indexes = indexes_text(end.start, s.page_bytes);
  if (is_again(transfer, end)) {
    step.told = hex(end.start.value);
    step.details = {indexes};
    return step;
  }
  step.told = fmt::format(
      "{}: the buffer begins {} into its first page. The number means something to this program"
      " alone; its processor reads it as indexes into tables, and an offset:",
      hex(end.start.value), counted(s.offset, "byte"));
  step.facts = {{"read as", indexes}};
  return step;
}

Step tell_mmu(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "MMU");
  if (end.host->is_on_gpu(end.start)) {
    step.told = "leads to no page of the kernel's, but to the GPU";
    return step;
  }
  const Heard::Kind& faults = end.touched.of(end.number(), EventKind::PageFault);
  const host::PageWalk walk = end.host->kernel().walk(end.pid, end.start);
  std::string way = hex(end.host->kernel().program(end.pid).table.root().value);
  for (unsigned i = 0; i < walk.steps_made; ++i)
    way += " -> " + hex(host::pte::address(walk.steps[i].value).value);
  const std::string first_touches =
      counted(faults.count, "page fault") + " when the program first touched its buffer";
  if (is_again(transfer, end)) {
    step.told = first_touches;
    step.details.push_back(way);
  } else if (faults.count == 0) {
    step.told = "The pages were there already, and the MMU finds them without a page fault.";
    step.facts.push_back({"table walk", way});
  } else {
    step.told = fmt::format(
        "{}: each time the kernel finds a frame of RAM, zeroes it and enters it in the table. Now"
        " {} to the first frame:",
        first_touches, counted(walk.steps_made, "table", "leads", "lead"));
    step.facts.push_back({"table walk", way});
  }
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
      trace::time_text(
          cost_of(Constant::TouchPage) *
          static_cast<std::int64_t>(faults.count * transfer.settings().page_bytes / kPage4K))));
  add_events(step, end.touched.of(end.number(), EventKind::PageFault), kEventsShown);
  add_events(step, end.touched.of(end.number(), EventKind::MmuWalk), kEventsShown);
  return step;
}

Step tell_frames(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Physical memory");
  if (end.host->is_on_gpu(end.start)) {
    const Range<PhysSpace> bar = end.host->gpu_bar();
    step.told = fmt::format("the GPU's (02:00.0); the bus finds it in a window (BAR 1) at {}, {}",
                            hex(bar.start.value), bytes_text(bar.length));
    return step;
  }
  const std::vector<pcie::Span> spans = frames_of(transfer, end);
  const std::uint64_t pages = pages_of(transfer.settings());
  const bool again = is_again(transfer, end);
  const std::string pieces =
      spans.size() == 1 ? "one piece of RAM" : grouped(spans.size()) + " pieces of RAM";
  step.told =
      again
          ? fmt::format("{}, the first at {}", pieces, hex(spans[0].start.value))
          : fmt::format("{} of the program, one after the other, {} {}{}:", counted(pages, "page"),
                        pages == 1 ? "is" : "are", pieces, spans.size() == 1 ? "" : ", anywhere");
  const host::Kernel& kernel = end.host->kernel();
  const std::size_t shown = again ? 0 : kPagesShown;
  VirtAddr page = align_down(end.start, kPage4K);
  for (std::size_t i = 0; i < std::min(spans.size(), shown + kEventsShown); ++i) {
    const PhysAddr behind = advance(spans[i].start, spans[i].bytes);
    const std::string line = fmt::format("{} -> {}, {}", hex(page.value), hex(spans[i].start.value),
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

namespace {

std::string rights_text(driver::AccessFlags access) {
  using driver::Access;
  std::string rights = "local read";
  if (access.has(Access::LocalWrite)) rights += ", local write";
  if (access.has(Access::RemoteRead)) rights += ", remote read";
  if (access.has(Access::RemoteWrite)) rights += ", remote write";
  if (access.has(Access::RemoteAtomic)) rights += ", remote atomic";
  return rights;
}

}  // namespace

Step tell_registration(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Register buffer");
  if (end.refused) {
    step.told = "The kernel does not let the device have it.";
    step.facts = {{"why", trace::reason_text(end.refused)}};
    step.mark = Mark::Refused;
    return step;
  }
  if (end.bus_pages.empty()) {
    step.told = "The program leaves that out.";
    return step;
  }
  const nic::KeyRecord& record = end.host->tables().keys[end.key.index()];
  const std::string rights = rights_text(driver::AccessFlags::of_bits(record.access));
  if (is_again(transfer, end)) {
    step.told = transfer.settings().operation == Operation::Send
                    ? fmt::format("key {} ({})", hex(end.key.value), rights)
                    : fmt::format("key {} ({}); the client was told address and key",
                                  hex(end.key.value), rights);
  } else {
    step.told =
        end.host->dma().translates()
            ? "One call into the kernel (ibv_reg_mr). It pins the frames (next step), maps them for"
              " the device (the one after), enters the buffer in the NIC's table, and gives the"
              " program a key:"
            : "One call into the kernel (ibv_reg_mr). It pins the frames (next step), enters the"
              " buffer in the NIC's table, and gives the program a key:";
    step.facts = {
        {"key " + hex(end.key.value),
         fmt::format("{} from {}, {}", counted(record.bytes, "byte"), hex(record.start), rights)},
        {"price",
         fmt::format("about {} of processor time, once",
                     trace::time_text(cost_of(Constant::RegisterFixed) +
                                      cost_of(Constant::RegisterPage) *
                                          static_cast<std::int64_t>(end.bus_pages.size())))}};
  }
  step.details.push_back(fmt::format("entry {}, variant {:#x}, protection domain {}",
                                     end.key.index(), record.variant, record.pd));
  add_events(step, end.registered.of(end.number(), EventKind::Register), kEventsShown);
  return step;
}

Step tell_pins(const Transfer& transfer, const TransferEnd& end) {
  Step step = step_of(transfer, end, "Pin");
  const Heard::Kind& pins = end.registered.of(end.number(), EventKind::Pin);
  if (end.host->is_on_gpu(end.start)) {
    step.told = "the GPU's driver keeps the buffer where it is";
  } else if (is_again(transfer, end)) {
    step.told = end.attempts.migrate == host::MoveAnswer::Done
                    ? "not as far as the kernel knows; migrating the first frame: done"
                    : fmt::format("{} of 4 KiB; migrating the first: {}",
                                  counted(pins.sums[1], "frame"), move_text(end.attempts.migrate));
  } else {
    step.told = fmt::format(
        "The device will look for the frames where they are now, so they must stay: {}."
        " The kernel has tried with the first of them:",
        counted(pins.sums[1], "frame", "is pinned", "are pinned"));
    step.facts = {
        {"attempts", fmt::format("migrate: {}; swap out: {}", move_text(end.attempts.migrate),
                                 move_text(end.attempts.swap_out))}};
  }
  step.details.push_back(fmt::format("compacting memory: {} moved, {} kept for a pin",
                                     counted(end.attempts.compaction.moved, "frame"),
                                     grouped(end.attempts.compaction.kept)));
  step.details.push_back(
      fmt::format("pinned on this host: {}", counted(end.host->pins().pages_held(), "frame")));
  add_events(step, end.registered.of(end.number(), EventKind::Pin), kEventsShown);
  add_events(step, end.moved.of(end.number(), EventKind::FrameKept), kEventsShown);
  return step;
}

}  // namespace softhca::sim
