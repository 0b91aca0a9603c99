#include "driver/live/live_device.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "driver/connections.h"
#include "driver/live/discovery.h"
#include "driver/live/live_machine.h"
#include "driver/live/service_thread.h"
#include "os/environment.h"
#include "os/fork.h"

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

constexpr int kSpins = 500;               // some microseconds, for a lock that is about to be free
constexpr std::uint64_t kFewPackets = 4;  // a message that is waited for, not a stream
constexpr Duration kAnswerTime = microseconds(2);
constexpr int kRoundsAtMost = 64;  // of progress for one wake-up of the service thread
// A miss costs some 50 ns: whoever still owns the device after so many may be off its CPU.
constexpr std::uint32_t kMissesBeforeWaiting = 256;

}  // namespace

struct LiveDevice::Inside {
  DeviceDescription description;  // as it was opened
  os::ForkMutex lock;             // the device lock
  std::unique_ptr<LiveMachine> machine;
  ServiceThread thread;
  bool expects_events = false;                // somebody waits for asynchronous ones
  bool sleeps = false;                        // a program that waited on a completion channel
  std::uint32_t watched = 0;                  // version of the descriptors that the thread hears
  std::atomic<bool> told{false};              // that it was left behind
  Inside* next_left = nullptr;                // of those that a child was left with
  std::atomic<std::uint64_t> turns{0};        // how often the lock was taken
  std::atomic<std::uint64_t> missed_turn{0};  // by a poll that found the device owned
  std::atomic<std::uint32_t> misses{0};       // of that turn

  void own();
  bool is_owner_stuck();
  // Whether a poll is to leave the work to it.
  bool leaves_to_thread() const {
    return machine->settings().engine == EnginePlacement::Thread && thread.is_running();
  }
  void take();
  bool is_missed() const { return missed_turn.load() == turns.load(); }
  // Takes in what has arrived; what is to be sent for it is put off. REQUIRES: owned.
  void take_in();
  void stop_if_broken();
  void set_port(const std::optional<DeviceDescription>& current);  // nothing: it has gone
  bool needs_thread() const;
  void listen();  // starts the thread, or tells it of new descriptors
  std::uint64_t count(Counter counter) const;
  // The thread's.
  bool lock_unless_leased(std::unique_lock<os::ForkMutex>& owned);
  ServiceThread::Driven serve(std::span<const int> readable);
};

std::uint64_t LiveDevice::Inside::count(Counter counter) const {
  return machine->tracer().counters().get(counter);
}

// Polls that miss the device compare it to guess whether its owner is stuck; nothing hangs on when
// they see it. REQUIRES: the lock is held.
void LiveDevice::Inside::own() {
  turns.store(turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Who drives holds the lock for a few system calls; to sleep until then would take far longer.
void LiveDevice::Inside::take() {
  bool mine = false;
  for (int i = 0; !mine && i < kSpins; ++i) mine = lock.try_lock();
  if (!mine) lock.lock();
  own();
}

// A program that spins while the owner is off its CPU keeps it off, on a machine with less CPUs
// than threads. Called by those who found the device owned.
bool LiveDevice::Inside::is_owner_stuck() {
  const std::uint64_t turn = turns.load();
  if (missed_turn.exchange(turn) != turn) misses.store(0);
  return misses.fetch_add(1) >= kMissesBeforeWaiting;
}

// Sockets that are not empty after the last round wake the thread again.
void LiveDevice::Inside::take_in() {
  try {
    for (int round = 0; round < kRoundsAtMost && !is_missed(); ++round) {
      const Time now = machine->now();
      if (!machine->engine().progress(now, nic::Caller::ComesBack) ||
          machine->engine().next_deadline() > now)
        break;
    }
  } catch (const AssertionFailed&) {
  }
  stop_if_broken();
}

// If the thread slept on the lock, every poll of the program would wake it.
bool LiveDevice::Inside::lock_unless_leased(std::unique_lock<os::ForkMutex>& owned) {
  for (int i = 0; !owned.try_lock(); ++i) {
    if (thread.is_leased(machine->now())) return false;
    if (i < kSpins) continue;
    owned.lock();
    break;
  }
  own();
  return true;
}

// What the service thread does. A program that watches its memory sees at once what has arrived and
// often answers: then its call, not this one, sends the acknowledgement, behind the answer.
ServiceThread::Driven LiveDevice::Inside::serve(std::span<const int> readable) {
  std::unique_lock owned(lock, std::defer_lock);
  if (!lock_unless_leased(owned)) return {.deadline = {}, .leased = true};
  machine->tracer().count(Counter::Wakeups);
  machine->expect(readable);
  const auto arrived = [&] {
    return count(Counter::PacketsReceived) + count(Counter::RawFramesIn) +
           count(Counter::MessagesPlaced);
  };
  const std::uint64_t before = arrived();
  if (machine->has_port_news(readable)) set_port(describe_interface(description));
  if (machine->has_ended_process(readable))
    machine->engine().connections().look_for_ended(machine->now());
  take_in();
  const std::uint64_t received = arrived() - before;
  if (received != 0 && received <= kFewPackets) {
    owned.unlock();
    for (const Time until = machine->now() + kAnswerTime; machine->now() < until;) {
    }
    take();
    owned = std::unique_lock(lock, std::adopt_lock);
  }
  try {
    machine->engine().send_owed(machine->now());
  } catch (const AssertionFailed&) {
  }
  stop_if_broken();
  listen();
  return {.deadline = machine->engine().next_deadline(), .received = received != 0};
}

// REQUIRES: the lock is held.
void LiveDevice::Inside::set_port(const std::optional<DeviceDescription>& current) {
  if (current) return machine->engine().set_port(current->port, current->gids);
  PortAttributes port = machine->engine().port();
  port.state = PortState::Down;
  port.down = {.id = ReasonId::NoInterface, .object = description.interface_index};
  machine->engine().set_port(port, {});
}

void LiveDevice::Inside::stop_if_broken() {
  if (!g_broken.load() || machine->engine().stopped()) return;
  try {
    machine->engine().stop({.id = ReasonId::AssertionBroken}, machine->now());
  } catch (const AssertionFailed&) {
  }
}

// A program that drives its device alone cannot while it sleeps.
bool LiveDevice::Inside::needs_thread() const {
  if (expects_events) return true;
  return machine->is_listening() && (machine->settings().engine != EnginePlacement::Inline ||
                                     sleeps || machine->engine().has_connections());
}

void LiveDevice::Inside::listen() {
  if (!needs_thread()) return machine->close_left();
  const std::uint32_t version = machine->fds_version();
  if (thread.is_running() && version == watched) return;
  if (!thread.is_running())
    thread.start("softhca",
                 {.now = [this] { return machine->now(); },
                  .drive = [this](std::span<const int> readable) { return serve(readable); },
                  .set_sleeping = [this](bool sleeps) { return machine->set_sleeping(sleeps); }},
                 machine->fds());
  else
    thread.watch(machine->fds());
  machine->close_left();
  watched = version;
}

// The devices that this process has open. Whoever opens, closes or forks holds the lock, so that a
// child never sees one that is half there. Never destroyed: a program may use a device until its
// last instruction.
struct LiveDevice::Registry {
  struct Entry {
    std::uint32_t interface_index;
    LiveDevice* device;
    std::weak_ptr<LiveDevice> handle;
  };
  os::ForkMutex lock;
  std::vector<Entry> open;
  // What a child was left with, so that it stays reachable. Freeing it would write to pages that
  // are still shared with the parent, for nothing.
  Inside* left = nullptr;

  // Null until the first device is opened. Not a local static: a thread that is in the middle of
  // initialising one would leave every child waiting for it.
  static std::atomic<Registry*> made;
  static Registry& only();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  static void at_exit();
};

constinit std::atomic<LiveDevice::Registry*> LiveDevice::Registry::made{nullptr};

LiveDevice::Registry& LiveDevice::Registry::only() {
  Registry* known = made.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto fresh = std::make_unique<Registry>();
  if (!made.compare_exchange_strong(known, fresh.get())) return *known;
  os::on_fork({before_fork, after_fork_in_parent, after_fork_in_child});
  static_cast<void>(std::atexit(at_exit));
  return *fresh.release();
}

// A program may end with the last message that it receives, and its peer waits for the word that
// it came: what was put off until the next call leaves now, and the connections end. What the
// kernel has given to this process and is for others, these last words perhaps, goes on to them.
// Whoever is inside is left alone.
void LiveDevice::Registry::at_exit() {
  Registry& registry = only();
  if (!registry.lock.try_lock()) return;
  for (const Entry& entry : registry.open) {
    Inside& in = *entry.device->inside_;
    if (entry.device->is_left_behind() || !in.lock.try_lock()) continue;
    try {
      Engine& engine = in.machine->engine();
      if (engine.has_connections()) engine.connections().disconnect_all(in.machine->now());
      engine.send_owed(in.machine->now());
    } catch (const AssertionFailed&) {
    }
    in.take_in();
    in.lock.unlock();
  }
  registry.lock.unlock();
}

void LiveDevice::Registry::before_fork() {
  Registry& registry = only();
  registry.lock.lock_for_fork();
  for (const Entry& entry : registry.open) {
    entry.device->inside_->lock.lock_for_fork();
    entry.device->inside_->machine->before_fork();
  }
}

void LiveDevice::Registry::after_fork_in_parent() {
  Registry& registry = only();
  for (const Entry& entry : registry.open) {
    entry.device->inside_->machine->after_fork_in_parent();
    entry.device->inside_->lock.unlock_after_fork();
  }
  registry.lock.unlock_after_fork();
}

void LiveDevice::Registry::after_fork_in_child() {
  Registry& registry = only();
  for (const Entry& entry : registry.open) {
    Inside& inside = *entry.device->inside_;
    inside.thread.abandon();
    inside.machine->leave_behind();
    inside.lock.unlock_after_fork();
  }
  registry.open.clear();
  registry.lock.unlock_after_fork();
}

Result<std::shared_ptr<LiveDevice>, Reason> LiveDevice::open(const DeviceDescription& which) {
  set_assert_hook(on_assertion);
  Registry& registry = Registry::only();
  std::shared_ptr<LiveDevice> device;  // should it go here, it goes after the lock
  const std::lock_guard lock(registry.lock);
  for (const Registry::Entry& entry : registry.open) {
    if (entry.interface_index != which.interface_index) continue;
    device = entry.handle.lock();
    if (device && !device->is_left_behind()) return device;
  }

  const auto current = describe_interface(which);
  if (!current) return Reason{.id = ReasonId::NoInterface, .object = which.interface_index};
  auto machine = LiveMachine::open(*current);
  if (!machine) {
    if (!os::env_flag("SOFTHCA_QUIET").value_or(false))
      std::fprintf(stderr, "softhca: %s is not opened: %s\n", current->name.c_str(),
                   trace::reason_text(machine.error().reason, machine.error().particulars).c_str());
    return machine.error().reason;
  }
  device.reset(new LiveDevice(*current));
  device->inside_->machine = std::move(*machine);
  registry.open.push_back({which.interface_index, device.get(), device});
  return device;
}

LiveDevice::LiveDevice(const DeviceDescription& which) : inside_(std::make_unique<Inside>()) {
  inside_->description = which;
}

LiveDevice::~LiveDevice() {
  Registry& registry = Registry::only();
  const std::lock_guard lock(registry.lock);
  if (is_left_behind()) {
    inside_->next_left = registry.left;
    registry.left = inside_.release();
    return;
  }
  std::erase_if(registry.open, [&](const auto& entry) { return entry.device == this; });
  inside_->thread.stop();
  inside_.reset();
}

Reason LiveDevice::left_behind() {
  const Reason reason{.id = ReasonId::LeftBehind};
  if (!inside_->told.exchange(true))
    inside_->machine->tell(trace::Telling::Cause, "in a forked child", reason);
  return reason;
}

void LiveDevice::enter() { inside_->take(); }

void LiveDevice::begin_post(Time now) { inside_->thread.begin_post(now); }
void LiveDevice::end_post() {
  if (inside_->thread.is_kept()) inside_->thread.end_call(now());
}

void LiveDevice::leave() {
  Inside& in = *inside_;
  in.stop_if_broken();
  in.listen();
  in.thread.need_by(in.machine->engine().next_deadline());
  in.lock.unlock();
}

Engine& LiveDevice::engine() { return inside_->machine->engine(); }
Time LiveDevice::now() const { return inside_->machine->now(); }

bool LiveDevice::drive() {
  Inside& in = *inside_;
  if (in.leaves_to_thread()) return false;
  std::unique_lock owned(in.lock, std::try_to_lock);
  if (!owned) {
    if (!in.is_owner_stuck()) return false;
    owned.lock();
  }
  in.own();
  const Time now = in.machine->now();
  in.thread.begin_call(now);
  const std::uint64_t before = in.count(Counter::CqesWritten);
  bool worked = false;
  try {
    worked = in.machine->engine().progress(now, in.thread.is_running() && in.thread.is_leased(now)
                                                    ? nic::Caller::ComesBack
                                                    : nic::Caller::MayLeave);
  } catch (const AssertionFailed&) {
  }
  in.stop_if_broken();
  if (in.thread.is_running()) in.listen();
  in.thread.end_poll(in.count(Counter::CqesWritten) == before, worked ? in.machine->now() : now);
  if (worked) in.thread.need_by(in.machine->engine().next_deadline());
  return worked;
}

void LiveDevice::expect_sleep() {
  const std::lock_guard owned(inside_->lock);
  inside_->sleeps = true;
  inside_->listen();
  inside_->thread.drop_lease();
}

const DeviceDescription& LiveDevice::description() const { return inside_->description; }

const Profile& LiveDevice::profile() const { return inside_->machine->settings().profile; }

void LiveDevice::expect_events() {
  const Ownership owned(*this);
  inside_->expects_events = true;
}

void LiveDevice::refresh_port() {
  if (is_left_behind()) return;
  const auto current = describe_interface(inside_->description);
  const Ownership owned(*this);
  inside_->set_port(current);
}

}  // namespace softhca::driver
