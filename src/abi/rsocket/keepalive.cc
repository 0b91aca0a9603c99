#include "abi/rsocket/keepalive.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "abi/rsocket/stream_socket.h"
#include "os/clock.h"
#include "os/thread.h"

namespace softhca::abi {
namespace {

struct Turn {
  const StreamSocket* who{};
  std::weak_ptr<StreamSocket> socket{};
  Duration period{};
  Time next{};
};

// Lives as long as the process that made it.
struct Rounds {
  std::uint64_t lineage = os::lineage();
  os::Clock clock{};
  std::mutex mutex{};
  std::condition_variable changed{};
  std::vector<Turn> turns{};
  bool is_running = false;
};

std::atomic<Rounds*> g_rounds{nullptr};

Rounds& rounds() {
  Rounds* const known = g_rounds.load();
  if (known != nullptr && known->lineage == os::lineage()) return *known;
  auto* const made = new Rounds;
  Rounds* expected = known;
  if (g_rounds.compare_exchange_strong(expected, made)) return *made;
  delete made;
  return *expected;
}

// Those whose turn it is.
std::vector<std::shared_ptr<StreamSocket>> due(Rounds& all, Time now) {
  std::vector<std::shared_ptr<StreamSocket>> sockets;
  for (Turn& turn : all.turns) {
    if (turn.next > now) continue;
    turn.next = now + turn.period;
    if (auto socket = turn.socket.lock()) sockets.push_back(std::move(socket));
  }
  return sockets;
}

// Until nobody is left.
void go_round(Rounds& all) {
  std::unique_lock lock(all.mutex);
  while (!all.turns.empty()) {
    const Time now = all.clock.now();
    auto sockets = due(all, now);
    if (!sockets.empty()) {
      lock.unlock();
      for (const auto& socket : sockets) socket->keep_alive();
      sockets.clear();  // perhaps the last one that holds it
      lock.lock();
      continue;
    }
    Time next = Time::never();
    for (const Turn& turn : all.turns) next = earlier(next, turn.next);
    all.changed.wait_for(lock, std::chrono::nanoseconds((next - now).nanoseconds() + 1));
  }
  all.is_running = false;
}

}  // namespace

void start_keepalive(const std::shared_ptr<StreamSocket>& socket, Duration period) {
  Rounds& all = rounds();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.turns, [&](const Turn& turn) { return turn.who == socket.get(); });
  all.turns.push_back({socket.get(), socket, period, all.clock.now() + period});
  all.changed.notify_one();
  if (all.is_running) return;
  auto started = os::Thread::start("rsocket-alive", [&all] { go_round(all); });
  if (!started) return;
  started->let_go();  // it ends with the last socket
  all.is_running = true;
}

void stop_keepalive(const StreamSocket& socket) {
  Rounds* const all = g_rounds.load();
  if (all == nullptr || all->lineage != os::lineage()) return;
  const std::lock_guard lock(all->mutex);
  std::erase_if(all->turns, [&](const Turn& turn) { return turn.who == &socket; });
  all->changed.notify_one();
}

}  // namespace softhca::abi
