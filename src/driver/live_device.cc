#include "driver/live_device.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>

#include "driver/discovery.h"
#include "driver/live_machine.h"
#include "driver/service_thread.h"

namespace softhca::driver {
namespace {

using trace::Counter;
using trace::Reason;
using trace::ReasonId;

// Set when an assertion breaks anywhere; each device stops when it is next left.
std::atomic<bool> g_broken{false};

void on_assertion(const char* expression, const char* file, int line) {
  g_broken.store(true);
  std::fprintf(stderr, "softhca: internal error, the device stops: %s (%s:%d)\n", expression, file,
               line);
}

constexpr int kRoundsAtMost = 64;  // of progress for one wake-up of the service thread
// A miss costs some 50 ns: whoever still owns the device after so many may be off its CPU.
constexpr std::uint32_t kMissesBeforeWaiting = 256;

}  // namespace

struct LiveDevice::Inside {
  DeviceDescription description;
  std::mutex lock;  // the device lock
  std::unique_ptr<LiveMachine> machine;
  ServiceThread thread;
  std::vector<int> watched;
  std::atomic<std::uint64_t> turns{0};        // how often the lock was taken
  std::atomic<std::uint64_t> missed_turn{0};  // by a poll that found the device owned
  std::atomic<std::uint32_t> misses{0};       // of that turn

  void own();
  bool is_owner_stuck();
  // Drives until there is nothing to do, or the program would like to. Takes the lock.
  Time drive_out();
  Time drive_round(bool first, bool& worked);
  void stop_if_broken();
  void serve();  // starts the thread, or tells it of new descriptors
};

// REQUIRES: the lock is held.
void LiveDevice::Inside::own() { turns.store(turns.load(std::memory_order_relaxed) + 1); }

// A program that spins while the owner is off its CPU keeps it off, on a machine with less CPUs
// than threads. Called by those who found the device owned.
bool LiveDevice::Inside::is_owner_stuck() {
  const std::uint64_t turn = turns.load();
  if (missed_turn.exchange(turn) != turn) misses.store(0);
  return misses.fetch_add(1) >= kMissesBeforeWaiting;
}

Time LiveDevice::Inside::drive_round(bool first, bool& worked) {
  if (first) {
    machine->tracer().count(Counter::Wakeups);
    machine->udp().expect_any();
  }
  try {
    worked = machine->engine().progress(machine->now());
  } catch (const AssertionFailed&) {
    worked = false;
  }
  stop_if_broken();
  return machine->engine().next_deadline();
}

// The lock is given back after each round: the program may be waiting for it.
Time LiveDevice::Inside::drive_out() {
  for (int round = 0;; ++round) {
    bool worked = false;
    Time deadline;
    {
      const std::lock_guard owned(lock);
      own();
      deadline = drive_round(round == 0, worked);
    }
    const bool is_missed = missed_turn.load() == turns.load();
    if (!worked || is_missed || round == kRoundsAtMost) return deadline;
  }
}

void LiveDevice::Inside::stop_if_broken() {
  if (!g_broken.load() || machine->engine().stopped()) return;
  try {
    machine->engine().stop({.id = ReasonId::AssertionBroken}, machine->now());
  } catch (const AssertionFailed&) {
  }
}

void LiveDevice::Inside::serve() {
  if (!machine->is_listening()) return;
  const std::vector<int> fds = machine->udp().fds();
  if (!thread.is_running()) {
    thread.start(
        "softhca",
        {.now = [this] { return machine->now(); }, .drive = [this] { return drive_out(); }}, fds);
    watched = fds;
  } else if (fds != watched) {
    thread.watch(fds);
    watched = fds;
  }
}

// The devices that this process has open, by interface. Never destroyed: a program may use a
// device until its last instruction.
namespace {
struct Registry {
  std::mutex lock;
  std::vector<std::pair<std::uint32_t, std::weak_ptr<LiveDevice>>> open;
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}
}  // namespace

Result<std::shared_ptr<LiveDevice>, Reason> LiveDevice::open(const DeviceDescription& which) {
  set_assert_hook(on_assertion);
  const std::lock_guard lock(registry().lock);
  auto& open = registry().open;
  std::erase_if(open, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [index, weak] : open)
    if (index == which.interface_index)
      if (auto device = weak.lock()) return device;

  const auto current = describe_interface(which);
  if (!current) return Reason{.id = ReasonId::NoInterface, .object = which.interface_index};
  auto machine = LiveMachine::open(*current);
  if (!machine) return machine.error();
  std::shared_ptr<LiveDevice> device(new LiveDevice(*current));
  device->inside_->machine = std::move(*machine);
  open.emplace_back(which.interface_index, device);
  return device;
}

LiveDevice::LiveDevice(const DeviceDescription& which) : inside_(std::make_unique<Inside>()) {
  inside_->description = which;
}

LiveDevice::~LiveDevice() { inside_->thread.stop(); }

void LiveDevice::enter() {
  inside_->lock.lock();
  inside_->own();
}

void LiveDevice::leave() {
  Inside& in = *inside_;
  in.stop_if_broken();
  in.serve();
  in.thread.need_by(in.machine->engine().next_deadline());
  in.lock.unlock();
}

Engine& LiveDevice::engine() { return inside_->machine->engine(); }
Time LiveDevice::now() const { return inside_->machine->now(); }

bool LiveDevice::drive() {
  Inside& in = *inside_;
  std::unique_lock owned(in.lock, std::try_to_lock);
  if (!owned) {
    if (!in.is_owner_stuck()) return false;
    owned.lock();
  }
  in.own();
  const Time now = in.machine->now();
  bool worked = false;
  try {
    worked = in.machine->engine().progress(now);
  } catch (const AssertionFailed&) {
  }
  in.stop_if_broken();
  in.thread.on_poll(!worked, now);
  if (worked) in.thread.need_by(in.machine->engine().next_deadline());
  return worked;
}

void LiveDevice::expect_sleep() {
  const std::lock_guard owned(inside_->lock);
  inside_->thread.drop_lease();
}

const DeviceDescription& LiveDevice::description() const { return inside_->description; }

void LiveDevice::refresh_port() {
  const auto current = describe_interface(inside_->description);
  const Ownership owned(*this);
  if (current) {
    inside_->description = *current;
    engine().set_port(current->port, current->gids);
  } else {
    PortAttributes port = engine().port();
    port.state = PortState::Down;
    port.down = {.id = ReasonId::NoInterface, .object = inside_->description.interface_index};
    engine().set_port(port, {});
  }
}

}  // namespace softhca::driver
