#include "transport/congestion.h"

#include <gtest/gtest.h>

namespace softhca::transport {
namespace {

constexpr Duration kInterval = microseconds(50);

// IBTA A17.9.3: the form of a CNP.
TEST(NotificationPoint, NamesTheQueuePairThatSent) {
  NotificationPoint point;
  EXPECT_FALSE(point.is_waiting());
  ASSERT_TRUE(point.on_marked({0x1234}, 0x7fff, kInterval, Time{0}));
  ASSERT_TRUE(point.is_waiting());
  const Emission out = point.poll_packet();
  wire::Headers expected;
  expected.bth.opcode = 0x81;
  expected.bth.becn = true;
  expected.bth.pkey = 0x7fff;
  expected.bth.dest_qpn = {0x1234};
  EXPECT_EQ(out.headers, expected);
  EXPECT_EQ(out.payload.place, PayloadRef::Place::None);
  EXPECT_EQ(out.payload.bytes, 16u);
  EXPECT_FALSE(point.is_waiting());
}

TEST(NotificationPoint, SendsOneInEachInterval) {
  NotificationPoint point;
  int sent = 0;
  for (Time now{0}; now < Time{0} + kInterval * 10; now = now + microseconds(1))
    if (point.on_marked({1}, 0xffff, kInterval, now)) ++sent, point.poll_packet();
  EXPECT_EQ(sent, 10);
}

TEST(NotificationPoint, DoesNotQueueThem) {
  NotificationPoint point;
  EXPECT_TRUE(point.on_marked({1}, 0xffff, kInterval, Time{0}));
  EXPECT_FALSE(point.on_marked({2}, 0xffff, kInterval, Time{0} + seconds(1)));
  EXPECT_EQ(point.poll_packet().headers.bth.dest_qpn, wire::Qpn{1});
  EXPECT_TRUE(point.on_marked({2}, 0xffff, kInterval, Time{0} + seconds(1)));
}

}  // namespace
}  // namespace softhca::transport
