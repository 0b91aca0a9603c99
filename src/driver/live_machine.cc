#include "driver/live_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "faults/plan_text.h"
#include "os/append_file.h"
#include "os/environment.h"
#include "os/kernel_features.h"
#include "os/random.h"
#include "os/self.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

namespace {

constexpr std::size_t kJournalEvents = std::size_t{1} << 20;  // 64 MiB, newest kept
constexpr int kLinesAtMost = 20;                              // on stderr, of one device

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

std::optional<os::PinBackend> backend_named(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const os::PinBackend backend :
       {os::PinBackend::IoUring, os::PinBackend::Mlock, os::PinBackend::Counted})
    if (*name == os::pin_backend_name(backend)) return backend;
  return std::nullopt;
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

LiveSettings LiveSettings::from_environment() {
  return {.strict = os::env_flag("SOFTHCA_STRICT").value_or(false),
          .scatter = os::env_flag("SOFTHCA_SCATTER").value_or(false),
          .quiet = os::env_flag("SOFTHCA_QUIET").value_or(false),
          .pin = backend_named(os::env_text("SOFTHCA_PIN")),
          .pcap = os::env_text("SOFTHCA_PCAP").value_or(""),
          .trace = os::env_text("SOFTHCA_TRACE").value_or(""),
          .ledger = os::env_text("SOFTHCA_LEDGER").value_or(""),
          .faults = os::env_text("SOFTHCA_FAULTS").value_or("")};
}

Result<std::unique_ptr<LiveMachine>, Reason> LiveMachine::open(const DeviceDescription& which) {
  LiveSettings settings = LiveSettings::from_environment();
  Result<faults::Plan, faults::PlanError> plan = faults::Plan{};
  if (!settings.faults.empty()) plan = faults::read_plan(settings.faults);
  if (!plan) {
    // Nothing is run without the faults that were asked for.
    if (!settings.quiet)
      std::fprintf(stderr, "softhca: %s is not opened: %s (SOFTHCA_FAULTS)\n", which.name.c_str(),
                   plan.error().text.c_str());
    return Reason{.id = ReasonId::PlanUnusable};
  }
  auto memory =
      os::SharedMemory::create((kTableName + which.name).c_str(), TableMemory::bytes_needed());
  if (!memory)
    return Reason{.id = ReasonId::AddressesExhausted, .length = TableMemory::bytes_needed()};
  auto copy = os::GuardedCopy::open();
  if (!copy) return Reason{.id = ReasonId::AddressesExhausted};
  const std::uint64_t seed = os::random_seed();
  auto block = local::QpnBlock::allocate({which.interface_index, wire::kUdpPort}, seed);
  if (!block) return Reason{.id = ReasonId::LimitExceeded, .high = local::kQpnBlocks};
  std::unique_ptr<LiveMachine> machine(new LiveMachine(which, std::move(settings), std::move(*plan),
                                                       std::move(*memory), std::move(*copy),
                                                       std::move(*block)));
  machine->build_engine(seed);
  return machine;
}

LiveMachine::LiveMachine(const DeviceDescription& which, LiveSettings settings, faults::Plan plan,
                         os::SharedMemory memory, os::GuardedCopy copy, local::QpnBlock block)
    : settings_(std::move(settings)),
      description_(which),
      memory_(std::move(memory)),
      tables_(memory_.bytes()),
      journal_(settings_.trace.empty() ? nullptr
                                       : std::make_unique<trace::Journal>(kJournalEvents)),
      tracer_(std::make_unique<trace::Tracer>(trace::Counters(tables_.counters()), journal_.get())),
      faults_(plan.faults.empty() ? nullptr
                                  : std::make_unique<faults::Injector>(std::move(plan), *tracer_)),
      copy_(std::move(copy)),
      kernel_pins_(os::KernelPins::open(settings_.pin)),
      ram_(host::Ram::of_process(copy_)),
      pins_(&kernel_pins_, {.strict = settings_.strict, .memlock_limit = os::memlock_limit()},
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
      block_(std::move(block)) {
  ram_.own(rings_.reserved());
  if (settings_.strict) ram_.go_by_frame(&pins_);
  fill_header();
}

LiveMachine::~LiveMachine() { write_reports(); }

void LiveMachine::leave_behind() {
  udp_->abandon();
  block_.mailbox().close();
  if (pcap_) pcap_->abandon();
  for (auto& [file, name] : claimed_) name.release();
  kernel_pins_.abandon();
  copy_.abandon();
  memory_.abandon();
  lines_told_ = 0;
}

void LiveMachine::fill_header() {
  TableHeader& h = tables_.header();
  h.pid = static_cast<std::int32_t>(os::own_pid());
  copy_text(h.device, sizeof h.device, description_.name);
  copy_text(h.interface, sizeof h.interface, description_.interface);
  copy_text(h.program, sizeof h.program, os::own_name());
  copy_text(h.pin_backend, sizeof h.pin_backend, os::pin_backend_name(kernel_pins_.backend()));
  h.first_qpn = block_.first_qpn();
}

// A capture has what is on the cable: a packet that a fault loses on its way out is not in it.
link::Link& LiveMachine::lay_cable() {
  udp_ = std::make_unique<link::UdpLink>(block_, *tracer_);
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
  if (faults_ == nullptr || !faults_->spoils_packets()) return *cable;
  faulty_ = std::make_unique<link::FaultyLink>(*cable, *faults_);
  return *faulty_;
}

void LiveMachine::build_engine(std::uint64_t seed) {
  link::Link& cable = lay_cable();
  engine_ = std::make_unique<Engine>(
      EngineParts{.ram = ram_,
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
                  .strict = settings_.strict,
                  .scatter = settings_.scatter,
                  .whole_space = place_of_whole_space(os::random_seed()),
                  .open_path = [this](const wire::Gid& source,
                                      wire::Qpn qpn) { return open_path(source, qpn); },
                  .join_group = [this](const wire::Gid& group) { return join_group(group); },
                  .leave_group = [this](const wire::Gid& group) { udp_->leave(group); },
                  .claim_file = [this](const FileIdentity& file) { return claim_file(file); },
                  .give_back_file = [this](const FileIdentity& file) { claimed_.erase(file); },
                  .name_of_place = [](std::uint64_t at) { return os::code_place(at); },
                  .may_use_raw_packets = [] { return os::has_capability(os::kCapNetRaw); },
                  .faults = faults_.get()});
  engine_->set_port(description_.port, description_.gids);
  engine_->set_reason_listener(
      [this](std::string_view what, const Reason& reason, std::string_view particulars) {
        tell(what, reason, particulars);
      });
  if (description_.port.state == PortState::Down)
    tell("port 1 of " + description_.interface, description_.port.down);
}

void LiveMachine::tell(std::string_view what, const Reason& reason, std::string_view particulars) {
  tell_line(std::string(what) + ": " + trace::reason_text(reason, particulars));
}

// For softhca explain --pid, also where nothing is printed.
void LiveMachine::publish_line(const std::string& line) {
  RefusalRecord& record = tables_.refusals()[refusals_ % TableMemory::kRefusals];
  record = {.number = ++refusals_};
  line.copy(record.line, sizeof record.line - 1);
}

void LiveMachine::tell_line(const std::string& line) {
  publish_line(line);
  if (settings_.quiet || lines_told_ > kLinesAtMost) return;
  if (lines_told_++ == kLinesAtMost) {
    std::fputs(
        "softhca: more refusals follow; they are not printed (see vendor_err and softhca "
        "explain)\n",
        stderr);
    return;
  }
  std::fprintf(stderr, "softhca: %s: %s\n", description_.name.c_str(), line.c_str());
}

Result<std::uint16_t, Reason> LiveMachine::open_path(const wire::Gid& source, wire::Qpn qpn) {
  const auto opened = udp_->open(source);
  if (!opened) {
    tell_line(opened.error().text);
    return Reason{.id = opened.error().reason};
  }
  listening_ = true;
  return udp_->source_port_for(source, qpn);
}

Result<void, Reason> LiveMachine::join_group(const wire::Gid& group) {
  const auto joined = udp_->join(group);
  if (joined) return {};
  tell_line(joined.error().text);
  return Reason{.id = joined.error().reason};
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
  if (journal_)
    append(fmt::format("{}.{}", settings_.trace, tables_.header().pid),
           trace::recording(*journal_, "monotonic, ps since the device was opened"));
}

}  // namespace softhca::driver
