#include "abi/rdmacm/news.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace softhca::abi {
namespace {

using cm::EventKind;

cm::Event event_of(EventKind kind) {
  cm::Event event{.kind = kind};
  event.terms.responder_resources = 3;
  event.terms.initiator_depth = 4;
  event.terms.retry_count = 5;
  event.terms.rnr_retry_count = 6;
  event.terms.flow_control = true;
  event.terms.remote_srq = true;
  event.terms.remote_qpn = {0x123};
  event.terms.remote_qkey = 0x01234567;
  event.private_bytes.assign(56, std::byte{7});
  return event;
}

TEST(News, OfARequestHasThePeersParametersAndBytes) {
  const auto news = news_of(event_of(EventKind::ConnectRequest), false);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(news->status, 0);
  EXPECT_EQ(news->connection.responder_resources, 3);
  EXPECT_EQ(news->connection.initiator_depth, 4);
  EXPECT_EQ(news->connection.retry_count, 5);
  EXPECT_EQ(news->connection.rnr_retry_count, 6);
  EXPECT_EQ(news->connection.flow_control, 1);
  EXPECT_EQ(news->connection.srq, 1);
  EXPECT_EQ(news->connection.qp_num, 0x123u);
  EXPECT_EQ(news->private_bytes.size(), 56u);
}

// CASES C80
TEST(News, OfARejectionHasTheReasonAsItsStatusAndTheBytes) {
  cm::Event event = event_of(EventKind::Rejected);
  event.status = 28;
  const auto news = news_of(event, false);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(news->status, 28);
  EXPECT_EQ(news->private_bytes.size(), 56u);
}

TEST(News, OfDatagramsThatAreRefusedSaysUnreachable) {
  cm::Event event = event_of(EventKind::Rejected);
  event.status = 1;
  const auto news = news_of(event, true);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->type, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(news->status, 1);
  EXPECT_TRUE(news->private_bytes.empty());
}

TEST(News, OfAResolutionNamesTheQueuePair) {
  const auto news = news_of(event_of(EventKind::Resolved), true);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(news->datagram_qpn, 0x123u);
  EXPECT_EQ(news->datagram_qkey, 0x01234567u);
  EXPECT_EQ(news->private_bytes.size(), 56u);
}

TEST(News, OfAnEndHasNoBytes) {
  for (const EventKind kind : {EventKind::Established, EventKind::Disconnected}) {
    const auto news = news_of(event_of(kind), false);
    ASSERT_TRUE(news);
    EXPECT_EQ(news->status, 0);
    EXPECT_TRUE(news->private_bytes.empty());
  }
  EXPECT_EQ(news_of(event_of(EventKind::TimewaitExit), false)->type, RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST(News, OfADeviceThatHasGone) {
  const auto news = news_of(event_of(EventKind::DeviceRemoved), false);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->type, RDMA_CM_EVENT_DEVICE_REMOVAL);
  EXPECT_EQ(news->status, 0);
  EXPECT_TRUE(news->private_bytes.empty());
}

TEST(News, OfSilenceSaysTimeout) {
  EXPECT_EQ(news_of(event_of(EventKind::Unreachable), false)->status, -ETIMEDOUT);
  cm::Event event = event_of(EventKind::Disconnected);
  event.reason.id = trace::ReasonId::DisconnectUnanswered;
  EXPECT_EQ(news_of(event, false)->status, -ETIMEDOUT);
}

TEST(News, OfAFullBacklogIsNotForPrograms) {
  EXPECT_FALSE(news_of(event_of(EventKind::BacklogFull), false));
}

}  // namespace
}  // namespace softhca::abi
