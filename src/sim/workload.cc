#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace softhca::sim {

using transport::Status;
using transport::WorkOpcode;

namespace {

constexpr std::uint64_t kArenaBytes = std::uint64_t{3} << 20;
constexpr std::uint32_t kLongestBytes = 24 * 1024;
constexpr std::uint64_t kMargin = 16;  // bytes around each buffer that nobody may touch
constexpr std::uint64_t kReceiveTag = std::uint64_t{1} << 63;

WorkOpcode opcode_of(int kind) {
  constexpr std::array kOpcodes = {
      WorkOpcode::Send, WorkOpcode::SendImm,     WorkOpcode::Write,   WorkOpcode::WriteImm,
      WorkOpcode::Read, WorkOpcode::CompareSwap, WorkOpcode::FetchAdd};
  return kOpcodes[static_cast<std::size_t>(kind)];
}

}  // namespace

Workload::Workload(World& world, const Connection& c, std::uint64_t seed, std::uint32_t operations)
    : world_(world), prng_(seed) {
  const Connection::End* ends[] = {&c.a, &c.b};
  for (int i = 0; i < 2; ++i) {
    Arena& arena = arenas_[i];
    arena.host = ends[i]->host;
    arena.bytes = kArenaBytes;
    arena.start = arena.host->allocate(arena.bytes, prng_.below(4096));
    const auto region = arena.host->engine().register_memory(
        ends[i]->pd, arena.start, arena.bytes, {arena.start.value},
        driver::AccessFlags::of_bits(1 | 2 | 4 | 8), world.now());
    ASSERT(region);
    arena.key = region->key;
    arena.model.resize(arena.bytes);
    for (std::byte& b : arena.model) b = static_cast<std::byte>(prng_.next());
    arena.host->store(arena.start, arena.model);
  }
  directions_[0] = {.from = c.a, .to = c.b, .operations = {}, .receives = {}};
  directions_[1] = {.from = c.b, .to = c.a, .operations = {}, .receives = {}};
  for (Direction& d : directions_) plan(d, operations);
}

std::uint64_t Workload::take(Arena& arena, std::uint32_t bytes, std::uint64_t alignment) {
  std::uint64_t at = arena.used + kMargin;
  at += (0 - (arena.start.value + at)) % alignment;
  arena.used = at + bytes + kMargin;
  ASSERT(arena.used <= arena.bytes);
  return at;
}

// A swap finds what it compares with every other time.
void Workload::plan_atomic(Operation& op, Arena& near, Arena& far) {
  op.bytes = transport::kAtomicBytes;
  op.source = take(far, op.bytes, transport::kAtomicBytes);
  op.target = take(near, op.bytes);
  const auto original = load_le<std::uint64_t>(far.model, op.source);
  store_le(Bytes(near.model), op.target, original);
  op.swap_or_add = prng_.next();
  op.compare = prng_.chance(1, 2) ? original : ~original;
  if (op.kind == Kind::FetchAdd)
    store_le(Bytes(far.model), op.source, original + op.swap_or_add);
  else if (op.compare == original)
    store_le(Bytes(far.model), op.source, op.swap_or_add);
}

// Which operations there will be, where their bytes lie, and what memory holds when all are done.
void Workload::plan(Direction& direction, std::uint32_t operations) {
  Arena& near = arena_of(direction.from);
  Arena& far = arena_of(direction.to);
  for (std::uint32_t i = 0; i < operations; ++i) {
    Operation op;
    op.kind = static_cast<Kind>(prng_.below(7));
    op.bytes = static_cast<std::uint32_t>(prng_.below(prng_.chance(1, 3) ? 64 : kLongestBytes));
    if (near.used + kLongestBytes + 4 * kMargin > near.bytes ||
        far.used + kLongestBytes + 4 * kMargin > far.bytes)
      break;
    op.immediate = static_cast<std::uint32_t>(prng_.next());
    if (is_atomic(op.kind)) {
      plan_atomic(op, near, far);
      direction.operations.push_back(op);
      continue;
    }
    const bool is_read = op.kind == Kind::Read;
    Arena& from = is_read ? far : near;
    Arena& to = is_read ? near : far;
    op.source = take(from, op.bytes);
    op.target = take(to, op.bytes);
    std::copy_n(from.model.begin() + static_cast<std::ptrdiff_t>(op.source), op.bytes,
                to.model.begin() + static_cast<std::ptrdiff_t>(op.target));
    if (needs_receive(op.kind)) ++direction.receives_needed;
    direction.operations.push_back(op);
  }
}

void Workload::complain(const std::string& what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} ns: {}", world_.now().ps / 1000, what);
}

void Workload::post(Direction& d) {
  Arena& near = arena_of(d.from);
  Arena& far = arena_of(d.to);
  // Receives, sometimes late: the sender then meets RNR NAKs.
  while (d.receive_next < d.operations.size() && d.receives.size() < 16 &&
         (d.receives.empty() || prng_.chance(1, 2))) {
    const Operation& op = d.operations[d.receive_next];
    if (needs_receive(op.kind)) {
      const bool is_send = op.kind != Kind::WriteImm;
      const driver::Sge sge{far.start.value + op.target, op.bytes, far.key.value};
      const auto posted = d.to.host->engine().post_receive(
          *d.to.qp, {d.receive_next | kReceiveTag, {&sge, is_send ? 1u : 0u}}, false, world_.now());
      if (!posted) break;
      d.receives.push_back(d.receive_next);
    }
    ++d.receive_next;
  }
  while (d.posted < d.operations.size() && d.posted - d.completed < 24) {
    const Operation& op = d.operations[d.posted];
    const bool is_read = op.kind == Kind::Read || is_atomic(op.kind);
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
    const auto posted =
        d.from.host->engine().post_send(*d.from.qp,
                                        {.wr_id = d.posted,
                                         .opcode = opcode_of(static_cast<int>(op.kind)),
                                         .flags = flags,
                                         .sges = std::span(sges).first(pieces),
                                         .immediate = op.immediate,
                                         .remote_address = far.start.value + remote,
                                         .rkey = far.key,
                                         .swap_or_add = op.swap_or_add,
                                         .compare = op.compare},
                                        false, world_.now());
    if (!posted) break;
    ++d.posted;
  }
}

void Workload::on_send_done(Direction& d, const driver::Completion& c) {
  if (c.status != Status::Success)
    return complain(fmt::format("operation {} failed with status {}, reason {}", c.wr_id,
                                static_cast<int>(c.status), static_cast<int>(c.reason)));
  if (c.wr_id != d.completed)
    return complain(fmt::format("operation {} completed where {} was due", c.wr_id, d.completed));
  ++d.completed;
}

void Workload::on_receive_done(Direction& d, const driver::Completion& c) {
  const std::size_t index = c.wr_id & ~kReceiveTag;
  if (c.status != Status::Success)
    return complain(
        fmt::format("receive {} failed with status {}", index, static_cast<int>(c.status)));
  if (d.receives.empty() || d.receives.front() != index)
    return complain(fmt::format("receive {} completed out of turn", index));
  d.receives.pop_front();
  ++d.receives_done;
  const Operation& op = d.operations[index];
  if (c.byte_count != op.bytes)
    complain(fmt::format("receive {}: {} bytes, expected {}", index, c.byte_count, op.bytes));
  const bool immediate = op.kind != Kind::Send;
  if (c.with_immediate != immediate || (immediate && c.immediate != op.immediate))
    complain(fmt::format("receive {}: wrong immediate data", index));
}

void Workload::take_completions(Connection::End& end) {
  std::array<driver::Completion, 8> completions;
  while (const std::size_t count = end.cq->poll(completions)) {
    for (std::size_t i = 0; i < count; ++i) {
      const driver::Completion& c = completions[i];
      const bool is_receive = (c.wr_id & kReceiveTag) != 0;
      Direction& d =
          (end.host == directions_[0].from.host) != is_receive ? directions_[0] : directions_[1];
      is_receive ? on_receive_done(d, c) : on_send_done(d, c);
    }
  }
}

void Workload::drive() {
  for (Direction& d : directions_) {
    post(d);
    take_completions(d.from);
  }
}

bool Workload::finished() const {
  return !wrong_.empty() || std::ranges::all_of(directions_, [](const Direction& d) {
    return d.completed == d.operations.size() && d.receives_done == d.receives_needed;
  });
}

std::string Workload::verdict() {
  if (!wrong_.empty()) return wrong_;
  for (Arena& arena : arenas_) {
    const std::vector<std::byte> memory = arena.host->load(arena.start, arena.bytes);
    const auto [is, should] = std::ranges::mismatch(memory, arena.model);
    if (is != memory.end()) complain(fmt::format("memory differs at byte {}", is - memory.begin()));
  }
  return wrong_;
}

void Workload::release() {
  for (Arena& arena : arenas_) {
    const auto removed = arena.host->engine().deregister_memory(arena.key, world_.now());
    ASSERT(removed);
  }
}

}  // namespace softhca::sim
