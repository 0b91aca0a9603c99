#include "base/fifo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace softhca {
namespace {

TEST(Fifo, GivesOutWhatWasPutInInOrder) {
  Fifo<int> fifo;
  std::deque<int> model;
  int next = 0;
  // Grows, stays long, and shrinks, so that the gap in front is closed now and then.
  const auto turn = [&](int pushed, int popped) {
    for (int i = 0; i < pushed; ++i) fifo.push_back(next), model.push_back(next++);
    for (int i = 0; i < popped && !model.empty(); ++i) {
      ASSERT_EQ(fifo.front(), model.front());
      fifo.pop_front();
      model.pop_front();
    }
    ASSERT_EQ(fifo.size(), model.size());
    ASSERT_TRUE(std::ranges::equal(fifo, model));
  };
  for (int i = 0; i < 50; ++i) turn(5, 2);
  for (int i = 0; i < 500; ++i) turn(3, 3);
  for (int i = 0; i < 200; ++i) turn(1, 2);
  EXPECT_TRUE(fifo.empty());
}

TEST(Fifo, StartsAtTheFrontAgainWhenItIsEmpty) {
  Fifo<int> fifo;
  fifo.push_back(1);
  const int* const place = &fifo.front();
  for (int i = 2; i < 1000; ++i) {
    fifo.pop_front();
    fifo.push_back(i);
    ASSERT_EQ(&fifo.front(), place);
    ASSERT_EQ(fifo.front(), i);
  }
}

TEST(Fifo, IsEmptyWhenItWasCleared) {
  Fifo<int> fifo;
  for (int i = 0; i < 10; ++i) fifo.push_back(i);
  fifo.pop_front();
  fifo.clear();
  EXPECT_TRUE(fifo.empty());
  EXPECT_EQ(fifo.size(), 0u);
  EXPECT_EQ(fifo.begin(), fifo.end());
}

}  // namespace
}  // namespace softhca
