#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace softhca::sim {

using transport::Status;
using transport::WorkOpcode;

namespace {

constexpr std::uint64_t kMargin = 16;  // bytes around each buffer that nobody may touch
constexpr std::uint64_t kReceiveTag = std::uint64_t{1} << 63;

WorkOpcode opcode_of(int kind) {
  constexpr std::array kOpcodes = {
      WorkOpcode::Send, WorkOpcode::SendImm,     WorkOpcode::Write,   WorkOpcode::WriteImm,
      WorkOpcode::Read, WorkOpcode::CompareSwap, WorkOpcode::FetchAdd};
  return kOpcodes[static_cast<std::size_t>(kind)];
}

}  // namespace

Workload::Workload(World& world, const Connection& c, std::uint64_t seed,
                   const WorkloadSettings& settings)
    : world_(world), prng_(seed) {
  ends_[0].queues = c.a;
  ends_[1].queues = c.b;
  for (End& end : ends_) set_up(end, settings);
  for (std::size_t from = 0; from < 2; ++from) plan(from, settings);
}

void Workload::set_up(End& end, const WorkloadSettings& settings) {
  Host& host = *end.queues.host;
  host.run(end.queues.program);
  const std::uint64_t offset = prng_.below(4096);
  const auto registered = [&](std::uint64_t page_bytes) {
    end.page_bytes = page_bytes;
    end.start = host.allocate(settings.arena_bytes, offset, page_bytes);
    return host.engine().register_memory(
        end.queues.pd, end.start, settings.arena_bytes, {end.start.value},
        driver::AccessFlags::of_bits(1 | 2 | 4 | 8 | 16), world_.now());
  };
  auto region = registered(settings.page_bytes);
  if (!region && settings.page_bytes != kPage4K) {
    const Range<VirtSpace> range{end.start, settings.arena_bytes};
    host.unmap(align_down(end.start, settings.page_bytes),
               pages_touched(range, settings.page_bytes) * settings.page_bytes);
    region = registered(kPage4K);
  }
  ASSERT(region);
  end.key = region->key;
  end.memory.resize(settings.arena_bytes);
  for (std::byte& b : end.memory) b = static_cast<std::byte>(prng_.next());
  host.store(end.start, end.memory);
  // One of type 2 would belong to the queue pair that bound it, which is no XRC target.
  if (prng_.below(2) == 0)
    open_window(end, prng_.below(2) == 0 || end.queues.target != nullptr ? nic::WindowType::One
                                                                         : nic::WindowType::Two);
}

// Unsignaled: bound when the post returns, since nothing is before it.
void Workload::open_window(End& end, nic::WindowType type) {
  driver::Engine& engine = end.queues.host->engine();
  const auto window = engine.alloc_window(end.queues.pd, type);
  ASSERT(window);
  end.window = wire::Key{window->value ^ 1};
  driver::SendRequest request;
  request.opcode = WorkOpcode::BindWindow;
  request.bind = {.window = *window,
                  .new_key = *end.window,
                  .region = end.key,
                  .address = end.start.value,
                  .length = end.memory.size(),
                  .access = driver::AccessFlags::of_bits(2 | 4 | 8)};
  const auto posted = engine.post_send(*end.queues.qp, request, false, world_.now());
  ASSERT(posted);
}

std::uint64_t Workload::take(End& end, std::uint32_t bytes, std::uint64_t alignment) {
  std::uint64_t at = end.used + kMargin;
  at += (0 - (end.start.value + at)) % alignment;
  end.used = at + bytes + kMargin;
  ASSERT(end.used <= end.memory.size());
  return at;
}

// A swap finds what it compares with every other time.
void Workload::plan_atomic(Operation& op, End& near, End& far) {
  op.bytes = transport::kAtomicBytes;
  op.source = take(far, op.bytes, transport::kAtomicBytes);
  op.target = take(near, op.bytes);
  const auto original = load_le<std::uint64_t>(far.memory, op.source);
  op.swap_or_add = prng_.next();
  op.compare = prng_.chance(1, 2) ? original : ~original;
}

// Which operations there will be, and where their bytes lie.
void Workload::plan(std::size_t from, const WorkloadSettings& settings) {
  End& near = ends_[from];
  End& far = ends_[1 - from];
  Direction& direction = directions_[from];
  for (std::uint32_t i = 0; i < settings.operations; ++i) {
    Operation op;
    op.kind = static_cast<Kind>(prng_.below(7));
    const std::uint64_t bound = prng_.chance(1, 3) ? 64 : settings.longest_bytes;
    op.bytes = static_cast<std::uint32_t>(prng_.below(bound));
    const auto is_full = [&](const End& end) {
      return end.used + settings.longest_bytes + 4 * kMargin > end.memory.size();
    };
    if (is_full(near) || is_full(far)) break;
    op.immediate = static_cast<std::uint32_t>(prng_.next());
    const bool is_read = op.kind == Kind::Read;
    if (is_atomic(op.kind)) {
      plan_atomic(op, near, far);
    } else {
      op.source = take(is_read ? far : near, op.bytes);
      op.target = take(is_read ? near : far, op.bytes);
    }
    if (needs_receive(op.kind)) ++direction.receives_needed;
    direction.operations.push_back(op);
  }
}

void Workload::complain(const std::string& what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} ns: {}", world_.now().ps / 1000, what);
}

// What the other end gives for the messages of this one, sometimes late: the sender then meets RNR
// NAKs.
void Workload::post_receives(std::size_t from) {
  Direction& d = directions_[from];
  const End& far = ends_[1 - from];
  while (d.receive_next < d.operations.size() && d.receives.size() < 16 &&
         (d.receives.empty() || prng_.chance(1, 2))) {
    const Operation& op = d.operations[d.receive_next];
    if (needs_receive(op.kind)) {
      const bool is_send = op.kind != Kind::WriteImm;
      const driver::Sge sge{far.start.value + op.target, op.bytes, far.key.value};
      const auto posted = far.queues.post_receive(
          {d.receive_next | kReceiveTag, {&sge, is_send ? 1u : 0u}}, world_.now());
      if (!posted) break;
      d.receives.push_back(d.receive_next);
    }
    ++d.receive_next;
  }
}

void Workload::post_sends(std::size_t from) {
  Direction& d = directions_[from];
  const End& near = ends_[from];
  const End& far = ends_[1 - from];
  while (d.posted < d.operations.size() && d.posted - d.completed < 24) {
    const Operation& op = d.operations[d.posted];
    const bool is_read = brings_bytes(op.kind);
    const std::uint64_t local = is_read ? op.target : op.source;
    const std::uint64_t remote = is_read ? op.source : op.target;
    // In one to three pieces.
    std::array<driver::Sge, 3> sges;
    const std::size_t pieces = 1 + prng_.below(3);
    std::uint32_t done = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::uint32_t bytes =
          i + 1 == pieces ? op.bytes - done
                          : static_cast<std::uint32_t>(prng_.below(op.bytes - done + 1));
      sges[i] = {near.start.value + local + done, bytes, near.key.value};
      done += bytes;
    }
    driver::SendFlags flags = driver::SendFlag::Signaled;
    if (prng_.chance(1, 8)) flags |= driver::SendFlag::Fence;
    const auto posted = near.queues.host->engine().post_send(
        *near.queues.qp,
        {.wr_id = d.posted,
         .opcode = opcode_of(static_cast<int>(op.kind)),
         .flags = flags,
         .sges = std::span(sges).first(pieces),
         .immediate = op.immediate,
         .remote_address = far.start.value + remote,
         .rkey = far.remote_key(),
         .xrc_srqn = far.queues.target != nullptr ? far.queues.srq->srqn() : 0,
         .swap_or_add = op.swap_or_add,
         .compare = op.compare},
        false, world_.now());
    if (!posted) break;
    ++d.posted;
  }
}

void Workload::on_send_done(std::size_t from, const driver::Completion& c) {
  Direction& d = directions_[from];
  if (c.wr_id != d.completed)
    return complain(fmt::format("operation {} completed where {} was due", c.wr_id, d.completed));
  const bool first_failure = d.completed == d.succeeded;
  ++d.completed;
  if (c.status == Status::Success && first_failure) {
    ++d.succeeded;
    return;
  }
  const Status due = first_failure ? Status::RetriesExceeded : Status::Flushed;
  if (!ends_[1 - from].lost || c.status != due)
    complain(fmt::format("operation {} completed with status {}, reason {}", c.wr_id,
                         static_cast<int>(c.status), static_cast<int>(c.reason)));
}

void Workload::on_receive_done(std::size_t from, const driver::Completion& c) {
  Direction& d = directions_[from];
  const std::size_t index = c.wr_id & ~kReceiveTag;
  if (d.receives.empty() || d.receives.front() != index)
    return complain(fmt::format("receive {} completed out of turn", index));
  d.receives.pop_front();
  ++d.receives_done;
  if (c.status == Status::Flushed && ends_[from].lost) return;
  if (c.status != Status::Success)
    return complain(
        fmt::format("receive {} failed with status {}", index, static_cast<int>(c.status)));
  Operation& op = d.operations[index];
  op.received = true;
  if (c.byte_count != op.bytes)
    complain(fmt::format("receive {}: {} bytes, expected {}", index, c.byte_count, op.bytes));
  const bool immediate = op.kind != Kind::Send;
  if (c.with_immediate != immediate || (immediate && c.immediate != op.immediate))
    complain(fmt::format("receive {}: wrong immediate data", index));
}

void Workload::take_completions(std::size_t end) {
  std::array<driver::Completion, 8> completions;
  while (const std::size_t count = ends_[end].queues.cq->poll(completions)) {
    for (std::size_t i = 0; i < count; ++i) {
      const driver::Completion& c = completions[i];
      const bool is_receive = (c.wr_id & kReceiveTag) != 0;
      is_receive ? on_receive_done(1 - end, c) : on_send_done(end, c);
    }
  }
}

void Workload::drive() {
  for (std::size_t end = 0; end < 2; ++end) {
    if (!ends_[1 - end].lost) post_receives(end);
    if (ends_[end].lost) continue;
    post_sends(end);
    take_completions(end);
  }
}

bool Workload::finished() const {
  if (!wrong_.empty()) return true;
  for (std::size_t end = 0; end < 2; ++end) {
    const Direction& out = directions_[end];
    const Direction& in = directions_[1 - end];
    if (ends_[end].lost) continue;
    if (out.completed != out.operations.size()) return false;
    if (!ends_[1 - end].lost && in.receives_done != in.receives_needed) return false;
  }
  return true;
}

// The word of an atomic holds what it held, or what the atomic makes of it once: nothing else. True
// if it shows no sign of not having been executed.
bool Workload::apply_atomic(std::vector<std::byte>& expected, const std::vector<std::byte>& memory,
                            const Operation& op) {
  const auto before = load_le<std::uint64_t>(expected, op.source);
  const std::uint64_t after = op.kind == Kind::FetchAdd ? before + op.swap_or_add
                              : before == op.compare    ? op.swap_or_add
                                                        : before;
  if (load_le<std::uint64_t>(memory, op.source) != after) return false;
  store_le(Bytes(expected), op.source, after);
  return true;
}

// What the operations of one end that have their target in `memory` came to. Each has placed all
// its bytes, or, if its end or the other one died, a beginning; behind that one there is nothing.
void Workload::apply(std::vector<std::byte>& expected, const std::vector<std::byte>& memory,
                     std::size_t from, bool reads) {
  const Direction& d = directions_[from];
  const std::vector<std::byte>& sources = ends_[reads ? 1 - from : from].memory;
  const bool whole = !ends_[0].lost && !ends_[1].lost;
  bool ended = false;
  for (std::size_t i = 0; i < d.operations.size(); ++i) {
    const Operation& op = d.operations[i];
    const bool due = whole || i < d.succeeded || op.received;
    if (is_atomic(op.kind) && !reads) {
      const bool executed = apply_atomic(expected, memory, op);
      if (due && !executed) complain(fmt::format("atomic {} was not executed once", i));
      ended = ended || !executed;
      continue;
    }
    if (brings_bytes(op.kind) != reads) continue;
    const auto source = std::span(sources).subspan(op.source, op.bytes);
    const auto is = std::span(memory).subspan(op.target, op.bytes);
    const auto target = std::span(expected).subspan(op.target, op.bytes);
    const auto placed =
        static_cast<std::size_t>(std::ranges::mismatch(source, is).in1 - source.begin());
    if (due && placed != op.bytes)
      complain(fmt::format("operation {} is complete, but byte {} is not there", i, placed));
    if (ended && !std::ranges::equal(is, target))
      complain(fmt::format("operation {} came before one that was posted earlier", i));
    ended = ended || placed != op.bytes;
    std::ranges::copy(source.first(placed), target.begin());
  }
}

std::string Workload::verdict() {
  for (std::size_t end = 0; end < 2 && wrong_.empty(); ++end) {
    if (ends_[end].lost) continue;
    Host& host = *ends_[end].queues.host;
    host.run(ends_[end].queues.program);
    const std::vector<std::byte> memory = host.load(ends_[end].start, ends_[end].memory.size());
    std::vector<std::byte> expected = ends_[end].memory;
    apply(expected, memory, 1 - end, false);
    apply(expected, memory, end, true);
    const auto [is, should] = std::ranges::mismatch(memory, expected);
    if (is != memory.end()) complain(fmt::format("memory differs at byte {}", is - memory.begin()));
  }
  return wrong_;
}

void Workload::release(std::size_t end) {
  driver::Engine& engine = ends_[end].queues.host->engine();
  if (ends_[end].window) engine.dealloc_window(*ends_[end].window);
  const auto removed = engine.deregister_memory(ends_[end].key, world_.now());
  ASSERT(removed);
}

}  // namespace softhca::sim
