#include "driver/live/live_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "driver/connections.h"
#include "driver/live/management_route.h"
#include "faults/plan_text.h"
#include "os/append_file.h"
#include "os/environment.h"
#include "os/kernel_features.h"
#include "os/random.h"
#include "os/self.h"
#include "wire/crc32.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

namespace {

constexpr int kLinesAtMost = 20;    // on stderr, of one device
constexpr int kWarningsAtMost = 3;  // besides, for one reason

host::RequesterId requester_id() { return {}; }

// Bus addresses of a live machine. A whole address space is 47 bits: it lies above the first 4 GiB,
// where interrupt messages go, at a random place, so that no bus address equals a virtual one.
// Everything else lies above it.
constexpr std::uint64_t kSpaceLowest = std::uint64_t{1} << 32;
constexpr std::uint64_t kSpaceHighest = std::uint64_t{1} << 40;
constexpr Range<BusSpace> kMappings{{(std::uint64_t{1} << 47) + kSpaceHighest},
                                    (std::uint64_t{1} << 47) - kSpaceHighest};

BusAddr place_of_whole_space(std::uint64_t random) {
  return align_down(BusAddr{kSpaceLowest + random % (kSpaceHighest - kSpaceLowest)}, kPage4K);
}

void copy_text(char* into, std::size_t room, std::string_view text) {
  const std::size_t count = std::min(room - 1, text.size());
  std::memcpy(into, text.data(), count);
}

// A string of JSON: quotes and backslashes escaped, control characters left out.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

Result<std::unique_ptr<LiveMachine>, NotOpened> LiveMachine::open(const DeviceDescription& which) {
  if (void* const found = os::optional_function(wire::kFasterLibrary, wire::kFasterFunction))
    wire::use_crc32(reinterpret_cast<wire::Crc32Function>(found));
  auto settings = LiveSettings::from_environment();
  if (!settings) return settings.error();
  Result<faults::Plan, faults::PlanError> plan = faults::Plan{};
  if (!settings->faults.empty()) plan = faults::read_plan(settings->faults);
  // Nothing is run without the faults that were asked for.
  if (!plan) return NotOpened({.id = ReasonId::PlanUnusable}, " " + plan.error().text + ".");
  auto memory =
      os::SharedMemory::create((kTableName + which.name).c_str(), TableMemory::bytes_needed());
  if (!memory)
    return NotOpened({.id = ReasonId::AddressesExhausted, .length = TableMemory::bytes_needed()});
  auto copy = os::GuardedCopy::open();
  if (!copy) return NotOpened({.id = ReasonId::AddressesExhausted});
  const std::uint64_t seed = os::random_seed();
  auto block = local::QpnBlock::allocate({which.interface_index, wire::kUdpPort}, seed);
  if (!block) return NotOpened({.id = ReasonId::LimitExceeded, .high = local::kQpnBlocks});
  std::unique_ptr<LiveMachine> machine(new LiveMachine(which, std::move(*settings),
                                                       std::move(*plan), std::move(*memory),
                                                       std::move(*copy), std::move(*block)));
  machine->build_engine(seed);
  return machine;
}

LiveMachine::LiveMachine(const DeviceDescription& which, LiveSettings settings, faults::Plan plan,
                         os::SharedMemory memory, os::GuardedCopy copy, local::QpnBlock block)
    : settings_(std::move(settings)),
      description_(which),
      memory_(std::move(memory)),
      tables_(memory_.bytes()),
      journal_(settings_.trace.empty() ? nullptr : std::make_unique<trace::Journal>(1)),
      tracer_(std::make_unique<trace::Tracer>(trace::Counters(tables_.counters()), journal_.get())),
      faults_(plan.faults.empty() ? nullptr
                                  : std::make_unique<faults::Injector>(std::move(plan), *tracer_)),
      copy_(std::move(copy)),
      kernel_pins_(os::KernelPins::open(settings_.pin)),
      ram_(host::Ram::of_process(copy_)),
      pins_(&kernel_pins_,
            {.strict = settings_.profile.holds_memory, .memlock_limit = os::memlock_limit()},
            *tracer_),
      frames_(tables_.iommu()),
      contexts_(frames_, *tracer_),
      iommu_(frames_, requester_id(), *tracer_),
      iova_(os::random_seed(), kMappings),
      port_({.ram = ram_,
             .iommu = iommu_,
             .iotlb = iotlb_,
             .config = config_,
             .tracer = *tracer_,
             .contexts = &contexts_,
             .faults = faults_.get()}),
      dma_({.iommu = iommu_,
            .iova = iova_,
            .port = port_,
            .tracer = *tracer_,
            .contexts = &contexts_},
           host::IommuMode::TranslateStrict, os::random_seed()),
      block_(std::move(block)),
      neighbours_(neighbourhood(), clock_),
      services_(block_.domain(), block_.number()),
      frames_port_(which.interface_index) {
  ram_.own(rings_.reserved());
  if (settings_.profile.holds_memory) ram_.go_by_frame(&pins_);
  if (settings_.frames) open_frames();
  fill_header();
  if (journal_) start_recording();
}

// The link passes on what it still has for others, when nothing can be for the engine any more.
LiveMachine::~LiveMachine() {
  write_reports();
  engine_.reset();
  ring_link_.reset();
  live_frames_.reset();
  faulty_.reset();
  pcap_.reset();
  udp_.reset();
}

// Copies to the device's own memory are plain.
void LiveMachine::open_frames() {
  auto frames = LiveFrames::open(copy_, *tracer_, [this](const Reason& why) {
    tell(trace::Telling::Warning, "memory in frames", why, {});
  });
  if (!frames) return tell(trace::Telling::Warning, "memory in frames", frames.error(), {});
  live_frames_ = std::move(*frames);
  space_.move_into(live_frames_.get());
  ram_.own_also(live_frames_->memory());
}

void LiveMachine::before_fork() {
  if (live_frames_) live_frames_->before_fork();
}

void LiveMachine::after_fork_in_parent() {
  if (live_frames_) live_frames_->after_fork_in_parent();
}

void LiveMachine::leave_behind() {
  const std::uint64_t shared_bytes = live_frames_ ? live_frames_->leave_behind() : 0;
  udp_->abandon();
  frames_port_.abandon();
  interfaces_.reset();
  block_.abandon();
  neighbours_.abandon();
  if (pcap_) pcap_->abandon();
  for (auto& [file, name] : claimed_) name.release();
  services_.abandon();
  watched_.clear();
  ended_.clear();
  kernel_pins_.abandon();
  copy_.abandon();
  memory_.abandon();
  if (recording_memory_) recording_memory_->abandon();
  lines_told_ = 0;
  if (shared_bytes != 0)
    tell(trace::Telling::Warning, "memory in frames",
         {.id = ReasonId::FramesLeftShared, .length = shared_bytes}, {});
}

std::vector<int> LiveMachine::fds() const {
  std::vector<int> all = udp_->fds();
  if (const int frames = frames_port_.fd(); frames >= 0) all.push_back(frames);
  if (interfaces_) all.push_back(interfaces_->fd());
  for (const auto& [block, watch] : watched_) all.push_back(watch.fd());
  return all;
}

bool LiveMachine::has_port_news(std::span<const int> readable) {
  return interfaces_ && std::ranges::find(readable, interfaces_->fd()) != readable.end() &&
         interfaces_->has_news(description_.interface_index);
}

void LiveMachine::close_left() {
  udp_->close_left();
  frames_port_.close_left();
  ended_.clear();
}

void LiveMachine::fill_header() {
  TableHeader& h = tables_.header();
  h.pid = static_cast<std::int32_t>(os::own_pid());
  copy_text(h.device, sizeof h.device, description_.name);
  copy_text(h.interface, sizeof h.interface, description_.interface);
  copy_text(h.program, sizeof h.program, os::own_name());
  copy_text(h.pin_backend, sizeof h.pin_backend, os::pin_backend_name(kernel_pins_.backend()));
  h.first_qpn = block_.first_qpn();
  h.own_address = reinterpret_cast<std::uintptr_t>(&h);
  h.instance = os::random_seed();
  h.iommu_root = iommu_.root();
  h.accessors_file = neighbours_.accessors_file();
  h.rings_file = neighbours_.rings_file();
  if (live_frames_) {
    h.frames_at = live_frames_->memory().start.value;
    h.frames_file = live_frames_->fd() + 1;
  }
}

// In FILE.PID; the next device that the process opens in FILE.PID.2, and so on.
void LiveMachine::start_recording() {
  const std::string name = fmt::format("{}.{}", settings_.trace, tables_.header().pid);
  auto file =
      os::SharedMemory::create_file(name, trace::Recording::kBytes, trace::Recording::kHeadBytes);
  if (!file) {
    std::fprintf(stderr, "softhca: cannot record to %s: %s (SOFTHCA_TRACE)\n", name.c_str(),
                 std::generic_category().message(file.error()).c_str());
    return;
  }
  recording_memory_ = std::move(*file);
  recording_ = std::make_unique<trace::Recording>(
      recording_memory_->bytes(), [this](std::uint64_t at, std::uint64_t bytes) {
        return recording_memory_->make_usable(at, bytes);
      });
  const TableHeader& from = tables_.header();
  trace::RecordingHeader& to = recording_->header();
  to.pid = from.pid;
  std::memcpy(to.program, from.program, sizeof to.program);
  std::memcpy(to.device, from.device, sizeof to.device);
  std::memcpy(to.interface, from.interface, sizeof to.interface);
  journal_->set_listener([this](const trace::Event& event) { recording_->append(event); });
}

// A capture has what is on the cable: a packet that a fault loses on its way out is not in it.
link::Link& LiveMachine::lay_cable() {
  udp_ = std::make_unique<link::UdpLink>(block_, *tracer_);
  udp_->set_management_router([this](const link::Frame& frame) { return owner_of(frame); });
  link::Link* cable = udp_.get();
  if (!settings_.pcap.empty()) {
    const std::int64_t start_ns = os::unix_time_ns() - clock_.now().ps / 1000;
    auto pcap = link::PcapLink::open(*udp_, settings_.pcap, start_ns);
    if (pcap) {
      pcap_ = std::move(*pcap);
      cable = pcap_.get();
    } else {
      std::fprintf(stderr, "softhca: cannot capture packets: %s (SOFTHCA_PCAP)\n",
                   pcap.error().text.c_str());
    }
  }
  if (neighbours_.rings() != nullptr) {
    ring_link_ = std::make_unique<link::RingLink>(link::RingLink::Parts{
        .inner = *cable,
        .rings = *neighbours_.rings(),
        .tracer = *tracer_,
        .is_own_address = [this](const wire::Gid& address) { return is_own_address(address); },
        .find = [this](std::uint32_t block) { return neighbours_.ring_to(block); },
        // Mail that says nothing: its reader looks at everything that it has.
        .wake = [this](std::uint32_t block) { local::post_mail(block_, block, {}, {}); }});
    cable = ring_link_.get();
  }
  if (faults_ == nullptr || !faults_->spoils_packets()) return *cable;
  faulty_ = std::make_unique<link::FaultyLink>(*cable, *faults_);
  return *faulty_;
}

// Who wants to see packets, slow them down or spoil them gets packets; and memory that is held by
// its frames is reached by them.
Neighbours::Settings LiveMachine::neighbourhood() {
  const bool direct = settings_.direct && settings_.pcap.empty() && faults_ == nullptr &&
                      !settings_.congestion.controls() && !settings_.profile.holds_memory;
  const auto file = os::identity_of(memory_.fd());
  return {.domain = block_.domain(),
          .block = block_.number(),
          .reaches_out = direct && file,
          .lets_in = direct,
          .has_rings = direct && file && settings_.rings,
          .is_plain = [this](std::span<const pcie::Span> spans) { return ram_.is_owned(spans); },
          .tracer = tracer_.get(),
          .self = {.pid = os::own_pid(), .file = memory_.fd(), .inode = file ? file->inode : 0},
          .is_own_address = [this](const wire::Gid& address) { return is_own_address(address); }};
}

bool LiveMachine::is_own_address(const wire::Gid& address) const {
  return std::ranges::find(engine_->gids(), address, &GidEntry::gid) != engine_->gids().end();
}

void LiveMachine::expect(std::span<const int> readable) {
  if (ring_link_) ring_link_->expect();
  if (readable.empty())
    udp_->expect_any();
  else
    udp_->expect(readable);
}

bool LiveMachine::set_sleeping(bool sleeps) {
  local::RingTable* const rings = neighbours_.rings();
  if (rings == nullptr) return false;
  if (sleeps) return rings->sleep();
  rings->wake_up();
  return false;
}

void LiveMachine::build_engine(std::uint64_t seed) {
  if (auto watch = os::InterfaceWatch::open()) interfaces_.emplace(std::move(*watch));
  link::Link& cable = lay_cable();
  engine_ = std::make_unique<Engine>(EngineParts{
      .ram = ram_,
      .pins = pins_,
      .dma = dma_,
      .port = port_,
      .config = config_,
      .space = space_,
      .rings = rings_,
      .link = cable,
      .tracer = *tracer_,
      .tables = tables_.tables(),
      .first_qpn = block_.first_qpn(),
      .seed = seed,
      .profile = settings_.profile,
      .scatter = settings_.scatter,
      .whole_space = place_of_whole_space(os::random_seed()),
      .open_path = [this](const wire::Gid& source,
                          wire::Qpn qpn) { return open_path(source, qpn); },
      .join_group = [this](const wire::Gid& group) { return join_group(group); },
      .leave_group = [this](const wire::Gid& group) { udp_->leave(group); },
      .claim_file = [this](const FileIdentity& file) { return claim_file(file); },
      .give_back_file = [this](const FileIdentity& file) { claimed_.erase(file); },
      .guid = description_.guid,
      .claim_service =
          [this](wire::ServiceId service, const wire::Gid& address) {
            return services_.claim(service.value, {address.bytes});
          },
      .give_back_service =
          [this](wire::ServiceId service, const wire::Gid& address) {
            services_.give_back(service.value, {address.bytes});
          },
      .pass_on_request = [this](const wire::Datagram& from,
                                ConstBytes packet) { return pass_on_request(from, packet); },
      .watch_process = [this](std::uint32_t block) { return watch_process(block); },
      .ended_processes = [this] { return ended_processes(); },
      .name_of_place = [](std::uint64_t at) { return os::code_place(at); },
      .interface = description_.interface,
      .may_use_raw_packets = [] { return os::has_capability(os::kCapNetRaw); },
      .frames = &frames_port_,
      .faults = faults_.get(),
      .congestion = settings_.congestion,
      .neighbours = &neighbours_});
  engine_->set_port(description_.port, description_.gids);
  engine_->set_reason_listener(
      [this](trace::Telling how, std::string_view what, const Reason& reason,
             std::string_view particulars) { tell(how, what, reason, particulars); });
  if (description_.port.state == PortState::Down)
    tell(trace::Telling::Cause, "port 1 of " + description_.interface, description_.port.down);
}

void LiveMachine::tell(trace::Telling how, std::string_view what, const Reason& reason,
                       std::string_view particulars) {
  tell_line({.how = how,
             .reason = reason.id,
             .about = std::string(what),
             .text = trace::reason_text(reason, particulars)});
}

// For softhca explain --pid, also where nothing is printed.
void LiveMachine::publish_line(const std::string& line) {
  RefusalRecord& record = tables_.refusals()[refusals_ % TableMemory::kRefusals];
  record = {.number = ++refusals_};
  line.copy(record.line, sizeof record.line - 1);
}

void LiveMachine::tell_line(const trace::ToldLine& told) {
  if (journal_)
    for (const trace::Event& event : trace::events_of(told, now())) journal_->append(event);
  if (told.how == trace::Telling::Again) return;
  const bool is_warning = told.how == trace::Telling::Warning;
  if (is_warning && warnings_told_[told.reason]++ >= kWarningsAtMost) return;
  const std::string line = told.about.empty() ? told.text : told.about + ": " + told.text;
  publish_line(line);
  if (settings_.quiet || lines_told_ > kLinesAtMost) return;
  if (!is_warning && lines_told_++ == kLinesAtMost) {
    std::fputs(
        "softhca: more refusals follow; they are not printed (see vendor_err and softhca "
        "explain)\n",
        stderr);
    return;
  }
  std::fprintf(stderr, "softhca: %s: %s\n", description_.name.c_str(), line.c_str());
}

Reason LiveMachine::told(const local::PortFailure& error) {
  tell_line(
      {.how = trace::Telling::Cause, .reason = error.reason, .about = {}, .text = error.text});
  return {.id = error.reason};
}

Result<std::uint16_t, Reason> LiveMachine::open_path(const wire::Gid& source, wire::Qpn qpn) {
  const auto opened = udp_->open(source);
  if (!opened) return told(opened.error());
  listening_ = true;
  return udp_->source_port_for(source, qpn);
}

Result<void, Reason> LiveMachine::join_group(const wire::Gid& group) {
  const auto joined = udp_->join(group);
  if (joined) return {};
  return told(joined.error());
}

bool LiveMachine::has_ended_process(std::span<const int> readable) const {
  return std::ranges::any_of(watched_, [&](const auto& entry) {
    return std::ranges::find(readable, entry.second.fd()) != readable.end();
  });
}

// One that too many watch already is not, and its end is found out by who sends to it.
bool LiveMachine::watch_process(std::uint32_t block) {
  if (block == block_.number() || watched_.contains(block)) return true;
  auto watch = os::NameWatch::start(local::life_name(block_.domain(), block));
  if (!watch) return !os::is_nobody_there(watch.error());
  watched_.emplace(block, std::move(*watch));
  ++watches_version_;
  return true;
}

std::vector<std::uint32_t> LiveMachine::ended_processes() {
  std::vector<std::uint32_t> blocks;
  for (auto& [block, watch] : watched_)
    if (watch.is_over()) blocks.push_back(block);
  for (const std::uint32_t block : blocks) {
    ended_.push_back(std::move(watched_.at(block)));
    watched_.erase(block);
    ++watches_version_;
  }
  return blocks;
}

local::ServiceNames::Listener LiveMachine::owner_of(const link::Frame& frame) {
  const wire::Gid& address = frame.datagram.destination;
  return management_route(frame.bytes, [&](wire::ServiceId service) {
    const bool is_ours = engine_ && engine_->has_connections() &&
                         engine_->connections().agent().listens(service, address);
    return is_ours
               ? local::ServiceNames::Listener{local::ServiceNames::Found::Block, block_.number()}
               : services_.find(service.value, {address.bytes}, now());
  });
}

bool LiveMachine::pass_on_request(const wire::Datagram& from, ConstBytes packet) {
  const link::Frame frame{from, packet};
  const auto owner = owner_of(frame);
  return owner.found == local::ServiceNames::Found::Block && owner.block != block_.number() &&
         udp_->forward(owner.block, frame);
}

// A name that one process holds at a time, gone with it.
bool LiveMachine::claim_file(const FileIdentity& file) {
  auto name =
      os::HostName::take("softhca/1/xrcd/" + std::to_string(description_.interface_index) + "/" +
                         std::to_string(file.device) + "/" + std::to_string(file.inode));
  if (!name) return false;
  claimed_.emplace(file, std::move(*name));
  return true;
}

std::string LiveMachine::ledger_line() {
  const TableHeader& h = tables_.header();
  std::string line =
      fmt::format(R"({{"pid":{},"program":{},"device":{},"interface":{},"pin":{})", h.pid,
                  quoted(h.program), quoted(h.device), quoted(h.interface), quoted(h.pin_backend));
  if (const auto example = engine_->first_region())
    line += fmt::format(
        R"(,"first_region":{{"virtual":"{:#x}","bus":"{:#x}","bytes":{},"pages":{},"leaves":{}}})",
        example->start.value, example->bus.value, example->bytes, example->pages, example->leaves);
  line += R"(,"counters":{)";
  const char* comma = "";
  for (const trace::CounterInfo& row : trace::kCounters) {
    line += fmt::format(R"({}"{}":{})", comma, row.name, tracer_->counters().get(row.counter));
    comma = ",";
  }
  return line + "}}\n";
}

void LiveMachine::write_reports() {
  if (reported_) return;
  reported_ = true;
  const auto append = [](const std::string& path, const std::string& text) {
    auto file = os::AppendFile::open(path, {});
    if (!file || !file->append(std::as_bytes(std::span(text))))
      std::fprintf(stderr, "softhca: cannot write %s\n", path.c_str());
  };
  if (!settings_.ledger.empty()) append(settings_.ledger, ledger_line());
  if (recording_) recording_memory_->cut(recording_->close());
}

}  // namespace softhca::driver
