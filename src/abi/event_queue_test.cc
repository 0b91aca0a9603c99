#include "abi/event_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace softhca::abi {
namespace {

struct Subject {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  std::uint32_t completed = 0;
  Acknowledgements events{mutex, changed, completed};
};

// CASES C35
TEST(Acknowledgements, TellOnceWhatAWaitIsForAndGoOnWaiting) {
  Subject subject;
  subject.events.delivered(0x10);
  subject.events.delivered(0x20);
  subject.events.acknowledge(1);
  int told = 0;
  std::thread other;
  subject.events.wait(
      [&](std::uint32_t events, std::uintptr_t place) {
        ++told;
        EXPECT_EQ(events, 1u);
        EXPECT_EQ(place, 0x20u);
        other = std::thread([&] { subject.events.acknowledge(1); });
      },
      Duration{});
  EXPECT_EQ(told, 1);
  EXPECT_EQ(subject.completed, 2u);
  other.join();
}

TEST(Acknowledgements, TellNothingWhereNothingIsMissing) {
  Subject subject;
  subject.events.delivered(0x10);
  subject.events.acknowledge(1);
  subject.events.wait([](std::uint32_t, std::uintptr_t) { FAIL(); }, Duration{});
  EXPECT_EQ(subject.completed, 1u);
}

}  // namespace
}  // namespace softhca::abi
