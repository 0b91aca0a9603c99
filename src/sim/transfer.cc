#include "sim/transfer.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "nic/key_table.h"
#include "sim/constants.h"

namespace softhca::sim {
namespace {

using driver::Access;
using driver::AccessFlags;
using transport::WorkOpcode;

constexpr std::uint64_t kSmallestMachine = std::uint64_t{64} << 20;
constexpr std::uint64_t kRamBeside = std::uint64_t{32} << 20;  // besides the buffer
constexpr std::uint64_t kNeighbourBytes = 16 * kPage4K;
constexpr Duration kPatience = seconds(30);
constexpr std::uint32_t kLongestSegment = std::uint32_t{1} << 30;

std::uint64_t ram_for(const JourneySettings& s) {
  const std::uint64_t buffer = pages_of(s) * s.page_bytes;
  // A huge page has to find an aligned place.
  const std::uint64_t ram = buffer + buffer / 4 + 2 * s.page_bytes + kRamBeside;
  return std::max(kSmallestMachine, (ram + kPage2M - 1) / kPage2M * kPage2M);
}

WorldSettings world_for(const JourneySettings& s, Transfer::Tweak tweak) {
  WorldSettings world;
  world.seed = s.seed;
  world.hosts = s.hosts;
  world.network = cited_network_costs();
  world.host = cited_host_costs();
  world.host.ram_bytes = ram_for(s);
  // Frames of 1 GiB are set aside when a machine starts; later there are none.
  world.host.fragmentation = s.page_bytes == kPage1G ? 0 : s.fragmentation;
  world.host.scatter = false;
  world.host.structure_caches = true;
  if (s.gpu) world.host.gpu_bytes = s.offset + s.bytes + kPage4K;
  world.host.acs_redirect = s.acs_redirect;
  switch (s.iommu) {
    case IommuChoice::On:
      world.host.iommu = host::IommuMode::TranslateStrict;
      break;
    case IommuChoice::Deferred:
      world.host.iommu = host::IommuMode::TranslateDeferred;
      break;
    case IommuChoice::PassThrough:
      world.host.iommu = host::IommuMode::PassThrough;
      break;
    case IommuChoice::Off:
      world.host.iommu = host::IommuMode::Off;
      break;
  }
  world.record = true;
  if (tweak != nullptr) tweak(world.host);
  return world;
}

// As the NIC's own table has it.
std::vector<std::uint64_t> pages_on_bus(Host& host, wire::Key key) {
  const nic::Tables tables = host.tables();
  const nic::KeyRecord& record = tables.keys[key.index()];
  const std::uint64_t count =
      pages_touched(Range<WireSpace>{{record.start}, record.bytes}, kPage4K);
  std::vector<std::uint64_t> pages;
  std::uint64_t address = record.start;
  for (std::uint64_t i = 0; i < count; ++i) {
    const BusAddr at = nic::first_piece(tables.keys, tables.translations, record, address, 1).at;
    pages.push_back(align_down(at, kPage4K).value);
    address = align_down(WireAddr{address}, kPage4K).value + kPage4K;
  }
  return pages;
}

// False where its program gave the memory back.
bool has_buffer(const TransferEnd& end) {
  return end.host->is_on_gpu(end.start) ||
         end.host->kernel().program(end.pid).region_at(end.start) != nullptr;
}

WorkOpcode opcode_of(Operation operation) {
  switch (operation) {
    case Operation::Write:
      return WorkOpcode::Write;
    case Operation::Read:
      return WorkOpcode::Read;
    case Operation::Send:
      return WorkOpcode::Send;
  }
  return WorkOpcode::Write;
}

}  // namespace

std::uint64_t pages_of(const JourneySettings& s) {
  return pages_touched(Range<VirtSpace>{{s.offset}, s.bytes}, s.page_bytes);
}

Transfer::Transfer(const JourneySettings& settings, Tweak tweak)
    : settings_(settings),
      world_(std::make_unique<World>(world_for(settings, tweak))),
      witness_(std::make_unique<Witness>(*world_->journal())),
      prng_(settings.seed ^ 0x6a6f75726e6579) {
  client.host = &world_->host(0);
  server.host = &world_->host(settings.hosts - 1);
  client.pid = client.host->running();
  server.pid = server.host->running();
  for (TransferEnd* const end : {&client, &server})
    end->host->engine().set_reason_listener(
        [end](trace::Telling how, std::string_view, const trace::Reason& reason, std::string_view) {
          if (how == trace::Telling::Cause && !end->cause) end->cause = reason;
        });
  start_neighbours();
}

Transfer::~Transfer() = default;

// On every host, so that their frames lie between those of the transfer.
void Transfer::start_neighbours() {
  constexpr std::array<std::string_view, 4> kNames = {"database", "browser", "password store",
                                                      "another model"};
  for (std::size_t i = 0; i < world_->host_count(); ++i) {
    Host& host = world_->host(i);
    const host::Pid own = host.running();
    std::uint8_t mark = 0xa0;
    for (const std::string_view name : kNames) {
      Neighbour neighbour{.pid = host.spawn(name),
                          .start = {},
                          .bytes = kNeighbourBytes,
                          .filled_with = std::byte{++mark}};
      host.run(neighbour.pid);
      neighbour.start = host.allocate(neighbour.bytes);
      host.fill(neighbour.start, neighbour.bytes, neighbour.filled_with);
      if (&host == server.host) neighbours.push_back(neighbour);
    }
    host.run(own);
  }
}

void Transfer::allocate(TransferEnd& end) {
  witness_->take();
  end.start = settings_.gpu && &end == &server
                  ? end.host->allocate_on_gpu(settings_.bytes, settings_.offset)
                  : end.host->allocate(settings_.bytes, settings_.offset, settings_.page_bytes);
  end.allocated = witness_->take();
}

// The program uses its buffer for the first time: each side with bytes of its own.
bool Transfer::touch(TransferEnd& end) {
  const bool done = write(end, Pattern::of_seed(prng_.next()));
  end.touched = witness_->take();
  return done;
}

bool Transfer::write(TransferEnd& end, const Pattern& pattern) {
  end.content = pattern;
  std::vector<std::byte> chunk(std::min(Pattern::kStep, settings_.bytes));
  for (std::uint64_t done = 0; done < settings_.bytes; done += chunk.size()) {
    const Bytes part = Bytes(chunk).first(std::min(Pattern::kStep, settings_.bytes - done));
    pattern.write(done, part);
    const VirtAddr at = advance(end.start, done);
    if (end.host->is_on_gpu(at))
      end.host->store(at, part);
    else if (!end.host->kernel().store(end.pid, at, part, world_->now()))
      return false;
  }
  return true;
}

bool Transfer::register_memory(TransferEnd& end, AccessFlags access, std::uint32_t pd) {
  witness_->take();
  const auto region =
      end.host->engine().register_memory(pd == 0 ? end.connection->pd : pd, end.start,
                                         settings_.bytes, {end.start.value}, access, world_->now());
  if (region) {
    end.key = region->key;
    end.bus_pages = pages_on_bus(*end.host, end.key);
  } else {
    end.refused = region.error();
  }
  end.registered = witness_->take();
  return static_cast<bool>(region);
}

void Transfer::try_to_move(TransferEnd& end) {
  if (end.host->is_on_gpu(end.start)) return;  // no frames of the kernel's
  host::Kernel& kernel = end.host->kernel();
  end.attempts.migrate = kernel.migrate(end.pid, end.start, world_->now());
  end.attempts.swap_out = kernel.swap_out(end.pid, end.start, world_->now());
  end.attempts.compaction = kernel.compact(world_->now());
  end.moved = witness_->take();
}

void Transfer::connect_ends() {
  ConnectionSettings settings;
  settings.mtu = 4096;
  settings.depth = 16;
  // Another connection of the same programs is in the same domains.
  settings.pd_a = client.connection == nullptr ? 0 : client.connection->pd;
  settings.pd_b = server.connection == nullptr ? 0 : server.connection->pd;
  connection_ = connect(*world_, *client.host, *server.host, settings);
  const bool is_first = client.connection == nullptr;
  client.connection = &connection_.a;
  server.connection = &connection_.b;
  if (!is_first) return;
  // The server's program has a region of its own already, so that the two ends' keys differ.
  const VirtAddr other = server.host->allocate(kPage4K);
  const auto region = server.host->engine().register_memory(server.connection->pd, other, kPage4K,
                                                            {other.value}, {}, world_->now());
  ASSERT(region);
}

AccessFlags Transfer::needed_rights(const TransferEnd& end) const {
  const bool is_client = &end == &client;
  switch (settings_.operation) {
    case Operation::Write:
      return is_client ? AccessFlags() : AccessFlags(Access::LocalWrite) | Access::RemoteWrite;
    case Operation::Read:
      return is_client ? AccessFlags(Access::LocalWrite) : AccessFlags(Access::RemoteRead);
    case Operation::Send:
      return is_client ? AccessFlags() : AccessFlags(Access::LocalWrite);
  }
  return {};
}

bool Transfer::prepare(AccessFlags client_access, AccessFlags server_access) {
  connect_ends();
  for (TransferEnd* const end : {&client, &server}) {
    allocate(*end);
    if (!touch(*end) || !register_memory(*end, end == &server ? server_access : client_access))
      return false;
    try_to_move(*end);
  }
  request = {.remote_address = server.start.value,
             .rkey = server.key,
             .lkey = client.key,
             .bytes = settings_.bytes,
             .operation = settings_.operation};
  return true;
}

void Transfer::post_and_finish() {
  post();
  finish();
}

void Transfer::post() {
  for (TransferEnd* const end : {&client, &server}) end->before = end->host->counts();
  witness_->take();
  completion_.reset();
  const auto length = static_cast<std::uint32_t>(request.bytes);
  ASSERT(request.bytes <= kLongestSegment);
  if (request.operation == Operation::Send) {
    const driver::Sge sge{server.start.value, length, server.key.value};
    const auto posted = server.host->engine().post_receive(*server.connection->qp, {1, {&sge, 1}},
                                                           false, world_->now());
    ASSERT(posted);
  }
  const driver::Sge sge{client.start.value, length, request.lkey.value};
  posted_at_ = world_->now();
  const auto posted = client.host->engine().post_send(*client.connection->qp,
                                                      {.wr_id = 1,
                                                       .opcode = opcode_of(request.operation),
                                                       .flags = driver::SendFlag::Signaled,
                                                       .sges = {&sge, 1},
                                                       .immediate = 0,
                                                       .remote_address = request.remote_address,
                                                       .rkey = request.rkey},
                                                      false, world_->now());
  posted_ = static_cast<bool>(posted);
}

bool Transfer::is_done() {
  constexpr auto kReceived = trace::Counter::PacketsReceived;
  const std::uint64_t packets =
      server.host->counter(kReceived) - server.before[static_cast<std::size_t>(kReceived)];
  if (then_ && packets >= after_packets_) std::exchange(then_, nullptr)(packets);
  driver::Completion completion;
  while (server.connection->cq->poll({&completion, 1}) != 0) {
  }
  if (client.connection->cq->poll({&completion, 1}) == 0) return false;
  completion_ = completion;
  took_ = world_->now() - posted_at_;
  return true;
}

void Transfer::finish() {
  world_->run_until([this] { return is_done(); }, kPatience);
  // What is still on its way gets there.
  world_->pass(milliseconds(1));
  is_done();
  heard_ = witness_->take();
  for (TransferEnd* const end : {&client, &server})
    end->counted = end->host->counted_since(end->before);
}

void Transfer::clear_target() { write(is_read() ? client : server, Pattern()); }

Duration Transfer::cpu_busy(Duration latency) const {
  const Duration busy =
      std::max(latency, cost_of(Constant::PostRequest) + cost_of(Constant::PollCompletion));
  return request.operation == Operation::Send ? busy * 2 : busy;
}

bool Transfer::holds(const TransferEnd& end, const Pattern& pattern) const {
  if (!has_buffer(end)) return false;
  std::vector<std::byte> now(std::min(Pattern::kStep, settings_.bytes));
  std::vector<std::byte> should(now.size());
  for (std::uint64_t done = 0; done < settings_.bytes; done += now.size()) {
    const std::uint64_t bytes = std::min(Pattern::kStep, settings_.bytes - done);
    end.host->load_into(advance(end.start, done), Bytes(now).first(bytes));
    pattern.write(done, Bytes(should).first(bytes));
    if (!std::ranges::equal(Bytes(now).first(bytes), Bytes(should).first(bytes))) return false;
  }
  return true;
}

bool Transfer::moved_all() const { return holds(target(), source().content); }
bool Transfer::is_untouched() const { return holds(target(), target().content); }

std::vector<std::byte> Transfer::first_arrived() const {
  const TransferEnd& end = target();
  constexpr std::uint64_t kShown = 8;
  if (!has_buffer(end)) return {};
  return end.host->load(end.start, std::min(kShown, settings_.bytes));
}

bool Transfer::is_payload(const TransferEnd& end, BusAddr at) {
  return std::ranges::find(end.bus_pages, align_down(at, kPage4K).value) != end.bus_pages.end();
}

std::vector<trace::Event> Transfer::payload_accesses(const TransferEnd& end,
                                                     trace::EventKind kind) const {
  std::vector<trace::Event> found;
  for (const trace::Event& event : heard_.of(end.number(), kind).first)
    if (is_payload(end, {event.fields[0]})) found.push_back(event);
  return found;
}

void Transfer::after_packets(std::uint64_t packets, std::function<void(std::uint64_t)> what) {
  after_packets_ = packets;
  then_ = std::move(what);
}

}  // namespace softhca::sim
