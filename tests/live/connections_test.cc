// Many connections in one process: by several threads at once, one after the other, and with a
// server that is killed in the middle. What was there before is there afterwards, and no more.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cm_side.h"

namespace {

using cm_test::add_qp;
using cm_test::Channel;
using cm_test::Event;
using cm_test::Id;

int rounds(int usual) {
  const char* const asked = std::getenv("SOFTHCA_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : usual;
}

long entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// Accepts whoever asks, and ends what a client ends.
class Server {
 public:
  explicit Server(int backlog = 1024)
      : listener_(cm_test::listener_on(channel_, RDMA_PS_TCP, backlog)) {}
  __be16 port() { return rdma_get_src_port(listener_.get()); }

  void serve_until(const std::atomic<bool>& is_over) {
    int idle = 0;
    while (!is_over.load() || (open_ > 0 && idle < kIdleRounds))
      if (channel_.is_readable(kRoundMs))
        serve(channel_.next()), idle = 0;
      else
        ++idle;
    EXPECT_EQ(open_, 0) << "connections that nobody has ended";
  }

 private:
  static constexpr int kRoundMs = 50;
  static constexpr int kIdleRounds = 400;  // then nothing more will come

  void serve(Event event) {
    if (!event) return;
    rdma_cm_id* const id = event->id;
    const rdma_cm_event_type type = event->event;
    event.reset();  // an id goes when its events have been given back
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      rdma_conn_param wanted = cm_test::parameters();
      ASSERT_EQ(add_qp(id), 0);
      ASSERT_EQ(rdma_accept(id, &wanted), 0);
      ++open_;
    } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
      const Id over(id);
      --open_;
    }
  }

  Channel channel_;
  Id listener_;
  int open_ = 0;
};

// An established connection; null, and why not.
struct Attempt {
  Id id;
  rdma_cm_event_type ended = RDMA_CM_EVENT_ESTABLISHED;
};
Attempt connect_to(Channel& channel, __be16 port) {
  Attempt attempt{cm_test::routed(channel, port)};
  rdma_conn_param wanted = cm_test::parameters();
  EXPECT_EQ(add_qp(attempt.id.get()), 0);
  EXPECT_EQ(rdma_connect(attempt.id.get(), &wanted), 0);
  const Event answer = channel.next();
  attempt.ended = answer ? answer->event : RDMA_CM_EVENT_CONNECT_ERROR;
  return attempt;
}

void end(Channel& channel, const Id& id) {
  EXPECT_EQ(rdma_disconnect(id.get()), 0);
  // Those that ended before it may be through with their waiting.
  Event event = channel.next();
  while (event && event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT) event = channel.next();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(event->id, id.get());
}

void open_and_close(__be16 port, int count) {
  Channel channel;
  std::vector<Id> open;
  for (int i = 0; i < count; ++i) {
    Attempt attempt = connect_to(channel, port);
    ASSERT_EQ(attempt.ended, RDMA_CM_EVENT_ESTABLISHED) << i;
    open.push_back(std::move(attempt.id));
  }
  for (const Id& id : open) end(channel, id);
}

// The first connections open what the device keeps: its ports, and threads.
class Connections : public testing::Test {
 protected:
  static constexpr long kPortsOpenedLate = 8;  // sockets that the next queue pairs leave by

  Connections() : server_([this] { side_.serve_until(is_over_); }) {
    one_after_the_other(60);
    files_ = entries("/proc/self/fd");
    threads_ = entries("/proc/self/task");
  }
  ~Connections() override { stop(); }
  void stop() {
    is_over_ = true;
    if (server_.joinable()) server_.join();
  }
  void one_after_the_other(int count) {
    for (int i = 0; i < count; ++i) open_and_close(side_.port(), 1);
  }
  void expect_nothing_left() {
    stop();
    EXPECT_LE(entries("/proc/self/fd"), files_ + kPortsOpenedLate);
    EXPECT_LT(entries("/proc/self/task"), threads_);
  }

  std::atomic<bool> is_over_{false};
  Server side_;
  std::thread server_;
  long files_ = 0;
  long threads_ = 0;
};

TEST_F(Connections, OfEightThreadsLeaveNothing) {
  constexpr int kThreads = 8;
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads; ++i)
    clients.emplace_back([this] { open_and_close(side_.port(), rounds(500) / kThreads); });
  for (std::thread& client : clients) client.join();
  expect_nothing_left();
}

TEST_F(Connections, OneAfterTheOtherLeaveNothing) {
  one_after_the_other(rounds(300));
  expect_nothing_left();
}

// Each client hears of the end, in one way or another, and can connect elsewhere.
TEST(ConnectionsOfAKilledServer, AllEnd) {
  int answers[2];
  ASSERT_EQ(::pipe(answers), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::atomic<bool> is_over{false};
    Server server;
    const __be16 port = server.port();
    if (::write(answers[1], &port, sizeof port) == sizeof port) server.serve_until(is_over);
    ::_exit(1);
  }
  ::close(answers[1]);  // so that a child that cannot serve is not waited for
  __be16 port = 0;
  ASSERT_EQ(::read(answers[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));

  constexpr int kThreads = 4;
  std::atomic<int> connected{0}, heard{0};
  const auto go_on_until_the_end = [&] {
    Channel channel;
    std::vector<Id> open;
    for (;;) {
      Attempt attempt = connect_to(channel, port);
      if (attempt.ended != RDMA_CM_EVENT_ESTABLISHED) {
        EXPECT_TRUE(attempt.ended == RDMA_CM_EVENT_REJECTED ||
                    attempt.ended == RDMA_CM_EVENT_UNREACHABLE ||
                    attempt.ended == RDMA_CM_EVENT_DISCONNECTED)
            << rdma_event_str(attempt.ended);
        break;
      }
      open.push_back(std::move(attempt.id));
      if (++connected == 40) ::kill(child, SIGKILL);
    }
    ++heard;
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads; ++i) clients.emplace_back(go_on_until_the_end);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(heard, kThreads);
  ::waitpid(child, nullptr, 0);
  ::close(answers[0]);

  std::atomic<bool> is_over{false};
  Server next;
  std::thread server([&] { next.serve_until(is_over); });
  open_and_close(next.port(), 1);
  is_over = true;
  server.join();
}

}  // namespace
