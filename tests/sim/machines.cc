#include "machines.h"

#include <fmt/format.h>

#include <algorithm>

namespace softhca::sim {

using host::FrameUse;
using host::IommuMode;
using host::MoveAnswer;

namespace {

constexpr std::uint64_t kRamBytes = std::uint64_t{24} << 20;
constexpr std::uint64_t kArenaBytes = 24 * kPage4K;
constexpr std::uint64_t kOwnPages = 6;  // of a program's own memory, at most
constexpr std::size_t kChildrenAtMost = 4;
constexpr Duration kPatience = seconds(2);

std::byte some_byte(Prng& prng) { return static_cast<std::byte>(prng.next()); }

}  // namespace

Sights& Sights::operator+=(const Sights& o) {
  retransmits += o.retransmits, failed += o.failed, within_one_host += o.within_one_host;
  moved += o.moved, swapped += o.swapped, kept_by_pin += o.kept_by_pin, orphans += o.orphans;
  forks += o.forks, child_writes += o.child_writes, deaths += o.deaths, births += o.births;
  return *this;
}

WorldSettings Machines::settings_for(Prng& prng) {
  WorldSettings s;
  s.seed = prng.next();
  s.hosts = 2 + prng.below(7);
  s.record = true;
  s.journal_events = 1024;
  s.ipv6 = prng.chance(1, 4);
  if (prng.chance(1, 3)) s.host = cited_host_costs();
  s.host.ram_bytes = kRamBytes;
  s.host.scatter = prng.chance(1, 2);
  s.host.fragmentation = prng.chance(1, 3) ? 0 : static_cast<unsigned>(prng.below(101));
  constexpr IommuMode kModes[] = {IommuMode::TranslateStrict, IommuMode::TranslateDeferred,
                                  IommuMode::PassThrough, IommuMode::Off};
  s.host.iommu = kModes[prng.chance(2, 3) ? prng.below(2) : prng.below(4)];
  s.network = prng.chance(1, 2) ? cited_network_costs() : link::SimCosts{.delay = microseconds(1)};
  if (prng.chance(1, 5)) return s;
  s.network.corruption = static_cast<std::uint32_t>(prng.below(51));
  s.network.loss = static_cast<std::uint32_t>(prng.below(151 - s.network.corruption));
  s.network.duplication = static_cast<std::uint32_t>(prng.below(151));
  s.network.reordering = static_cast<std::uint32_t>(prng.below(151));
  s.network.delay_spread = microseconds(static_cast<std::int64_t>(prng.below(20)));
  return s;
}

Machines::Machines(std::uint64_t seed)
    : prng_(seed),
      deaths_left_(prng_.below(4)),
      births_left_(prng_.below(3)),
      forks_left_(prng_.below(7)) {
  const WorldSettings settings = settings_for(prng_);
  world_ = std::make_unique<World>(settings);
  storm_ = calm_ = settings.network;
  calm_.loss = calm_.duplication = calm_.corruption = 0;
  for (std::size_t i = 0; i < settings.hosts; ++i) {
    Host& host = world_->host(i);
    starts_.push_back({.leaves = host.dma().leaves(),
                       .bus_bytes = host.iova().bytes_in_use(),
                       .ring_bytes = host.ring_bytes(),
                       .tables = host.iommu().table_frames()});
    start_program(host, host.running());
    for (std::uint64_t more = prng_.below(3); more != 0; --more)
      start_program(host, host.spawn("program"));
  }
  for (std::size_t lines = 1 + settings.hosts / 2 + prng_.below(settings.hosts); lines != 0;) {
    Program& a = programs_[prng_.below(programs_.size())];
    Program& b = programs_[prng_.below(programs_.size())];
    if (&a == &b) continue;
    join(a, b);
    --lines;
  }
}

Machines::~Machines() = default;

Machines::Program& Machines::start_program(Host& host, host::Pid pid) {
  Program& program = programs_.emplace_back();
  program.index = programs_.size() - 1;
  program.host = &host;
  program.pid = pid;
  map_anew(program);
  return program;
}

void Machines::join(Program& a, Program& b) {
  ConnectionSettings s;
  s.mtu = 256u << prng_.below(5);
  s.depth = 32;
  s.timeout = 9;  // 2.1 ms
  s.max_reads = static_cast<std::uint8_t>(1 + prng_.below(8));
  s.psn_a = {static_cast<std::uint32_t>(prng_.below(1u << 24))};
  s.psn_b = {static_cast<std::uint32_t>(0xff'ff00 + prng_.below(256))};
  s.program_a = a.pid;
  s.program_b = b.pid;
  s.makes_shared_a = prng_.chance(1, 4);
  s.makes_shared_b = prng_.chance(1, 4);
  if (prng_.chance(1, 5)) s.type = transport::QpType::XrcSend;
  const Connection connection = connect(*world_, *a.host, *b.host, s);
  const WorkloadSettings load{
      .operations = static_cast<std::uint32_t>(2 + prng_.below(11)),
      .longest_bytes = static_cast<std::uint32_t>(1024u << prng_.below(4)),
      .arena_bytes = kArenaBytes,
      .page_bytes = prng_.chance(1, 8) ? kPage2M : kPage4K,
  };
  lines_.push_back({.work = std::make_unique<Workload>(*world_, connection, prng_.next(), load),
                    .programs = {&a, &b}});
  if (a.host == b.host) ++sights_.within_one_host;
}

void Machines::complain(std::string_view what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} ns: {}", world_->now().ps / 1000, what);
}

Machines::Program* Machines::some_program(bool also_children) {
  Program& program = programs_[prng_.below(programs_.size())];
  return program.alive() && (also_children || !program.is_child) ? &program : nullptr;
}

// An address in memory of the program, a device's or not.
VirtAddr Machines::somewhere(const Program& program) {
  std::vector<Range<VirtSpace>> ranges;
  for (const Memory& memory : program.own) ranges.push_back({memory.start, memory.bytes.size()});
  for (const Line& line : lines_)
    for (const std::size_t end : {0u, 1u})
      if (line.open && line.programs[end] == &program) ranges.push_back(line.work->arena(end));
  const Range<VirtSpace> range = ranges[prng_.below(ranges.size())];
  return advance(range.start, prng_.below(range.length));
}

void Machines::store(Program& program) {
  Memory& memory = program.own[prng_.below(program.own.size())];
  const std::uint64_t at = prng_.below(memory.bytes.size());
  const std::uint64_t most = std::min<std::uint64_t>(memory.bytes.size() - at, 6000);
  std::vector<std::byte> bytes(1 + prng_.below(most));
  for (std::byte& byte : bytes) byte = some_byte(prng_);
  const VirtAddr to = advance(memory.start, at);
  const auto stored = program.host->kernel().store(program.pid, to, bytes, world_->now());
  if (!stored) {
    // For a huge page that is shared there may be no second one; what came before is written.
    if (stored.error().error != host::MemoryError::OutOfMemory || memory.page_bytes == kPage4K)
      return complain("a program could not write to its memory");
    bytes.resize(distance(to, stored.error().at));
  }
  std::ranges::copy(bytes, memory.bytes.begin() + static_cast<std::ptrdiff_t>(at));
  sights_.child_writes += program.is_child ? 1 : 0;
}

void Machines::check(Program& program, const Memory& memory) {
  program.host->run(program.pid);
  if (program.host->load(memory.start, memory.bytes.size()) != memory.bytes)
    complain(fmt::format("memory of program {} at {:#x} is not what it wrote", program.pid.value,
                         memory.start.value));
}

void Machines::check_all(Program& program) {
  for (const Memory& memory : program.own) check(program, memory);
}

void Machines::move_page(Program& program) {
  host::Kernel& kernel = program.host->kernel();
  const VirtAddr at = somewhere(program);
  const bool swap = prng_.chance(1, 2);
  const MoveAnswer answer = swap ? kernel.swap_out(program.pid, at, world_->now())
                                 : kernel.migrate(program.pid, at, world_->now());
  if (answer == MoveAnswer::Done) ++(swap ? sights_.swapped : sights_.moved);
  if (answer == MoveAnswer::Pinned) ++sights_.kept_by_pin;
}

// As a kernel that is short of memory, or of huge frames.
void Machines::take_memory(Host& host) {
  host::Kernel& kernel = host.kernel();
  switch (prng_.below(3)) {
    case 0:
      sights_.moved += kernel.compact(world_->now()).moved;
      break;
    case 1:
      sights_.swapped += kernel.reclaim(prng_.below(60), world_->now());
      break;
    default:
      kernel.reap_orphans();
  }
}

// The child has what the parent had at this moment, also of what devices write to, for ever.
void Machines::fork(Program& parent) {
  const auto children =
      std::ranges::count_if(programs_, [](const Program& p) { return p.is_child && p.alive(); });
  if (forks_left_ == 0 || static_cast<std::size_t>(children) >= kChildrenAtMost) return;
  --forks_left_;
  Host& host = *parent.host;
  host.run(parent.pid);
  std::deque<Memory> inherited = parent.own;
  for (const Line& line : lines_)
    for (const std::size_t end : {0u, 1u}) {
      if (!line.open || line.programs[end] != &parent) continue;
      const Range<VirtSpace> arena = line.work->arena(end);
      inherited.push_back(
          {arena.start, host.load(arena.start, arena.length), line.work->page_bytes(end)});
    }
  const auto pid = host.kernel().fork(parent.pid, world_->now());
  if (!pid) return;
  Program& child = programs_.emplace_back();
  child.index = programs_.size() - 1;
  child.host = &host;
  child.pid = *pid;
  child.is_child = true;
  child.own = std::move(inherited);
  ++sights_.forks;
}

void Machines::pin_or_unpin(Program& program) {
  if (program.pd != 0) return unpin(program);
  driver::Engine& engine = program.host->engine();
  program.host->run(program.pid);
  const Memory& memory = program.own[prng_.below(program.own.size())];
  const auto pd = engine.alloc_pd();
  if (!pd) return complain("no protection domain");
  const auto region = engine.register_memory(
      *pd, memory.start, memory.bytes.size(), {memory.start.value},
      driver::AccessFlags::of_bits(prng_.chance(1, 2) ? 1 : 0), world_->now());
  if (!region) return complain("memory could not be registered");
  program.pd = *pd;
  program.key = region->key;
}

void Machines::unpin(Program& program) {
  driver::Engine& engine = program.host->engine();
  if (!engine.deregister_memory(program.key, world_->now()) || !engine.dealloc_pd(program.pd))
    complain("memory could not be deregistered");
  program.pd = 0;
}

// Gives a stretch of its memory back, pinned or not, and gets another one.
void Machines::map_anew(Program& program) {
  Host& host = *program.host;
  host.run(program.pid);
  if (!program.own.empty() && prng_.chance(2, 3)) {
    const auto gone =
        program.own.begin() + static_cast<std::ptrdiff_t>(prng_.below(program.own.size()));
    const VirtAddr first = align_down(gone->start, gone->page_bytes);
    const Range<VirtSpace> range{gone->start, gone->bytes.size()};
    check(program, *gone);
    host.unmap(first, pages_touched(range, gone->page_bytes) * gone->page_bytes);
    program.own.erase(gone);
    sights_.orphans += host.kernel().orphans();
  }
  if (program.own.size() >= 4) return;
  const std::uint64_t bytes = 1 + prng_.below(kOwnPages * kPage4K);
  program.own.push_back(
      {host.allocate(bytes, prng_.below(kPage4K)), std::vector<std::byte>(bytes), kPage4K});
}

void Machines::be_born() {
  Program* const other = some_program(false);
  if (births_left_ == 0 || other == nullptr) return;
  --births_left_;
  Host& host = world_->host(prng_.below(world_->host_count()));
  join(start_program(host, host.spawn("newcomer")), *other);
  ++sights_.births;
}

// With everything open. Its device is closed at once, or a little later.
void Machines::die(Program& program) {
  check_all(program);
  for (Line& line : lines_)
    for (const std::size_t end : {0u, 1u})
      if (line.programs[end] == &program) line.work->lose(end);
  Host& host = *program.host;
  if (prng_.chance(1, 2)) {
    host.exit(program.pid);
    program.state = Program::State::Gone;
  } else {
    host.kernel().exit(program.pid, world_->now());
    sights_.orphans += host.kernel().orphans();
    program.state = Program::State::Dead;
    program.closes_at = world_->now() + microseconds(static_cast<std::int64_t>(prng_.below(3000)));
  }
}

void Machines::close_device(Program& program) {
  program.host->close_device_of(program.pid);
  program.state = Program::State::Gone;
}

// Both ends of a connection that has done its work close it; the memory stays theirs.
void Machines::retire(Line& line) {
  line.open = false;
  if (const std::string wrong = line.work->verdict(); wrong_.empty()) wrong_ = wrong;
  for (const std::size_t end : {0u, 1u}) {
    sights_.failed += line.work->failed(end);
    if (line.work->is_lost(end)) continue;
    Program& program = *line.programs[end];
    const Range<VirtSpace> arena = line.work->arena(end);
    program.host->run(program.pid);
    Memory memory{arena.start, program.host->load(arena.start, arena.length),
                  line.work->page_bytes(end)};
    line.work->release(end);
    disconnect(*world_, line.work->end(end));
    program.own.push_back(std::move(memory));
  }
}

void Machines::act() {
  const std::uint64_t what = prng_.below(1000);
  if (what < 40) return take_memory(world_->host(prng_.below(world_->host_count())));
  if (what < 60) return be_born();
  if (what < 90) {
    Line& line = lines_[prng_.below(lines_.size())];
    if (line.open && line.work->finished()) retire(line);
    return;
  }
  Program* const program = some_program(what >= 200);
  if (program == nullptr) return;
  if (what < 130) return pin_or_unpin(*program);
  if (what < 160) return map_anew(*program);
  if (what < 200) {
    if (deaths_left_ == 0) return;
    --deaths_left_;
    ++sights_.deaths;
    return die(*program);
  }
  if (what < 260) return fork(*program);
  if (what < 300 && program->is_child) {
    die(*program);
    if (program->state == Program::State::Dead) close_device(*program);
    return;
  }
  if (what < 550) return move_page(*program);
  if (what < 800) return store(*program);
  check(*program, program->own[prng_.below(program->own.size())]);
}

bool Machines::on_step() {
  // Losses come in storms; between two of them a transport with seven retries gets its chance.
  const bool raging = world_->now().ps % milliseconds(5).ps < milliseconds(3).ps;
  world_->network().set_costs(raging ? storm_ : calm_);
  for (Program& program : programs_)
    if (program.state == Program::State::Dead && program.closes_at <= world_->now())
      close_device(program);
  if (prng_.chance(1, 3)) act();
  bool finished = true;
  for (Line& line : lines_) {
    if (!line.open) continue;
    line.work->drive();
    finished = finished && line.work->finished();
  }
  return finished || !wrong_.empty();
}

std::string Machines::run() {
  const bool all = world_->run_until([this] { return on_step(); }, kPatience);
  for (const Line& line : lines_)
    if (line.open && !line.work->finished()) complain("not everything completed");
  if (!all && wrong_.empty()) complain("nothing is left to happen");
  end_all();
  if (wrong_.empty()) world_->pass(milliseconds(20));
  for (std::size_t i = 0; i < world_->host_count() && wrong_.empty(); ++i) check_balance(i);
  return wrong_;
}

void Machines::end_all() {
  for (Line& line : lines_)
    if (line.open && wrong_.empty()) retire(line);
  for (Program& program : programs_) {
    if (program.state == Program::State::Gone || !wrong_.empty()) continue;
    if (program.alive()) {
      if (program.pd != 0 && prng_.chance(1, 2)) unpin(program);
      die(program);
    }
    if (program.state == Program::State::Dead) close_device(program);
  }
}

void Machines::check_balance(std::size_t i) {
  Host& host = world_->host(i);
  host.dma().flush(world_->now());
  host.kernel().reap_orphans();
  const host::Kernel& kernel = host.kernel();
  const auto expect = [&](std::string_view what, std::uint64_t is, std::uint64_t should) {
    if (is != should) complain(fmt::format("host {}: {} {} instead of {}", i, is, what, should));
  };
  expect("programs", kernel.programs(), 0);
  expect("program frames", kernel.frames().used(FrameUse::Program), 0);
  expect("orphans", kernel.orphans(), 0);
  expect("page tables", kernel.page_tables(), 0);
  expect("free frames", kernel.frames().free_frames(), kernel.frames().frames());
  expect("swap slots", kernel.swap_slots_used(), 0);
  expect("pages held", host.pins().pages_held(), 0);
  expect("pins", host.pins().pin_count(), 0);
  expect("leaves", host.dma().leaves(), starts_[i].leaves);
  expect("unmaps that wait", host.dma().waiting(), 0);
  expect("bus addresses", host.iova().bytes_in_use(), starts_[i].bus_bytes);
  expect("IOMMU tables", host.iommu().table_frames(), starts_[i].tables);
  expect("bytes of rings", host.ring_bytes(), starts_[i].ring_bytes);
  expect("IOMMU faults", host.iommu().faults().total(), 0);
  const auto count = [&](trace::Counter counter) { return host.counter(counter); };
  using trace::Counter;
  expect("regions", count(Counter::RegionsRegistered), count(Counter::RegionsDeregistered));
  expect("pages pinned", count(Counter::PagesPinned), count(Counter::PagesUnpinned));
  expect("stale translations", count(Counter::StaleTranslations), 0);
  expect("key refusals", count(Counter::KeyRefusals), 0);
  const nic::Tables tables = host.tables();
  expect("queue pairs",
         static_cast<std::uint64_t>(
             std::ranges::count_if(tables.qps, [](const nic::QpRecord& r) { return r.qpn != 0; })),
         0);
}

Sights Machines::sights() const {
  Sights all = sights_;
  for (std::size_t i = 0; i < world_->host_count(); ++i)
    all.retransmits += world_->host(i).counter(trace::Counter::Retransmits);
  return all;
}

}  // namespace softhca::sim
