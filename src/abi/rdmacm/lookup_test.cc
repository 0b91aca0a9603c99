#include "abi/rdmacm/lookup.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace softhca::abi {
namespace {

using Found = std::unique_ptr<rdma_addrinfo, FreeAddrinfo>;

Found found(const char* node, const char* service, const rdma_addrinfo* hints) {
  rdma_addrinfo* first = nullptr;
  const auto answer = look_up(node, service, hints, &first);
  EXPECT_TRUE(answer && *answer == 0);
  return Found(first);
}

// 0, or with what the C library refuses.
int refused(const char* node, const char* service, const rdma_addrinfo& hints) {
  rdma_addrinfo* first = nullptr;
  const auto answer = look_up(node, service, &hints, &first);
  const Found owned(first);
  EXPECT_TRUE(answer);
  return answer ? *answer : -1;
}

sockaddr_in address(const char* text, std::uint16_t port) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, text, &made.sin_addr), 1);
  return made;
}

rdma_addrinfo hints(int flags, int qp_type = 0, int port_space = RDMA_PS_TCP) {
  rdma_addrinfo made{};
  made.ai_flags = flags;
  made.ai_qp_type = qp_type;
  made.ai_port_space = port_space;
  return made;
}

bool is(const sockaddr* one, socklen_t bytes, const sockaddr_in& other) {
  return one != nullptr && bytes == sizeof other && std::memcmp(one, &other, bytes) == 0;
}

TEST(Lookup, OfNothingIsRefused) {
  rdma_addrinfo* first = nullptr;
  const auto answer = look_up(nullptr, nullptr, nullptr, &first);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, EINVAL);
}

TEST(Lookup, GivesAnActiveSideItsDestination) {
  const Found one = found("192.0.2.9", "7174", nullptr);
  EXPECT_TRUE(is(one->ai_dst_addr, one->ai_dst_len, address("192.0.2.9", 7174)));
  EXPECT_EQ(one->ai_src_addr, nullptr);
  EXPECT_EQ(one->ai_src_len, 0u);
  EXPECT_EQ(one->ai_flags, 0);
  EXPECT_EQ(one->ai_family, AF_INET);
  EXPECT_EQ(one->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(one->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(one->ai_next, nullptr);
}

TEST(Lookup, GivesAPassiveSideItsSource) {
  const rdma_addrinfo passive = hints(RAI_PASSIVE | RAI_NOROUTE);
  const Found one = found("192.0.2.1", "7174", &passive);
  EXPECT_TRUE(is(one->ai_src_addr, one->ai_src_len, address("192.0.2.1", 7174)));
  EXPECT_EQ(one->ai_dst_addr, nullptr);
  EXPECT_EQ(one->ai_flags, RAI_PASSIVE);
}

TEST(Lookup, GivesAPassiveSideWithoutANodeEveryAddress) {
  rdma_addrinfo passive = hints(RAI_PASSIVE | RAI_FAMILY);
  passive.ai_family = AF_INET;
  const Found four = found(nullptr, "7174", &passive);
  EXPECT_TRUE(is(four->ai_src_addr, four->ai_src_len, address("0.0.0.0", 7174)));
  passive.ai_family = AF_INET6;
  const Found six = found(nullptr, "7174", &passive);
  ASSERT_EQ(six->ai_src_len, sizeof(sockaddr_in6));
  const auto* const source = reinterpret_cast<const sockaddr_in6*>(six->ai_src_addr);
  EXPECT_EQ(std::memcmp(&source->sin6_addr, &in6addr_any, sizeof in6addr_any), 0);
  EXPECT_EQ(ntohs(source->sin6_port), 7174);
}

TEST(Lookup, KeepsTheSourceThatIsGiven) {
  sockaddr_in source = address("192.0.2.1", 77);
  rdma_addrinfo active = hints(0);
  active.ai_src_addr = reinterpret_cast<sockaddr*>(&source);
  active.ai_src_len = sizeof source;
  const Found to = found("192.0.2.9", "7174", &active);
  EXPECT_TRUE(is(to->ai_src_addr, to->ai_src_len, source));
  EXPECT_NE(to->ai_src_addr, active.ai_src_addr);
  // A passive side's own name comes first.
  active.ai_flags = RAI_PASSIVE;
  const Found from = found("192.0.2.9", "7174", &active);
  EXPECT_TRUE(is(from->ai_src_addr, from->ai_src_len, address("192.0.2.9", 7174)));
}

TEST(Lookup, OfAddressesIsACopyOfThem) {
  sockaddr_in target = address("192.0.2.9", 5);
  rdma_addrinfo given = hints(RAI_NOROUTE, IBV_QPT_UD, RDMA_PS_UDP);
  given.ai_family = AF_INET;
  given.ai_dst_addr = reinterpret_cast<sockaddr*>(&target);
  given.ai_dst_len = sizeof target;
  const Found one = found(nullptr, nullptr, &given);
  EXPECT_TRUE(is(one->ai_dst_addr, one->ai_dst_len, target));
  EXPECT_NE(one->ai_dst_addr, given.ai_dst_addr);
  EXPECT_EQ(one->ai_flags, RAI_NOROUTE);
  EXPECT_EQ(one->ai_family, AF_INET);
  EXPECT_EQ(one->ai_qp_type, IBV_QPT_UD);
  EXPECT_EQ(one->ai_port_space, RDMA_PS_UDP);
}

// The table is rdma-core 44's.
TEST(Lookup, KnowsWhichQueuePairsGoWithWhichPortSpace) {
  struct Case {
    int qp_type, port_space, refused, qp_type_found, port_space_found;
  };
  for (const Case& one : {Case{0, 0, 0, IBV_QPT_RC, RDMA_PS_TCP},
                          {0, RDMA_PS_UDP, 0, IBV_QPT_UD, RDMA_PS_UDP},
                          {0, RDMA_PS_IPOIB, 0, IBV_QPT_UD, RDMA_PS_IPOIB},
                          {0, RDMA_PS_IB, 0, IBV_QPT_RC, RDMA_PS_IB},
                          {IBV_QPT_UD, 0, 0, IBV_QPT_UD, RDMA_PS_UDP},
                          {IBV_QPT_UC, 0, 0, IBV_QPT_UC, RDMA_PS_TCP},
                          {IBV_QPT_UD, RDMA_PS_IB, 0, IBV_QPT_UD, RDMA_PS_IB},
                          {IBV_QPT_XRC_SEND, RDMA_PS_IB, 0, IBV_QPT_XRC_SEND, RDMA_PS_IB},
                          {IBV_QPT_RAW_PACKET, RDMA_PS_UDP, 0, IBV_QPT_RAW_PACKET, RDMA_PS_UDP},
                          {IBV_QPT_UD, RDMA_PS_TCP, EAI_SOCKTYPE, 0, 0},
                          {IBV_QPT_RC, RDMA_PS_UDP, EAI_SOCKTYPE, 0, 0},
                          {IBV_QPT_XRC_RECV, RDMA_PS_IPOIB, EAI_SOCKTYPE, 0, 0}}) {
    const rdma_addrinfo wanted = hints(0, one.qp_type, one.port_space);
    ASSERT_EQ(refused("192.0.2.9", "7174", wanted), one.refused)
        << one.qp_type << " " << one.port_space;
    if (one.refused != 0) continue;
    const Found made = found("192.0.2.9", "7174", &wanted);
    EXPECT_EQ(made->ai_qp_type, one.qp_type_found);
    EXPECT_EQ(made->ai_port_space, one.port_space_found);
  }
}

TEST(Lookup, RefusesAsTheCLibraryDoes) {
  EXPECT_EQ(refused("localhost", "7174", hints(RAI_NUMERICHOST)), EAI_NONAME);
  EXPECT_EQ(refused("", "7174", hints(RAI_NUMERICHOST)), EAI_NONAME);
  EXPECT_EQ(refused("192.0.2.9", "no-such-service", hints(0)), EAI_SERVICE);
  rdma_addrinfo family = hints(RAI_FAMILY);
  family.ai_family = AF_INET;
  EXPECT_EQ(refused("::1", "7174", family), EAI_ADDRFAMILY);
  family.ai_family = 99;
  EXPECT_EQ(refused("192.0.2.9", "7174", family), EAI_FAMILY);
}

TEST(Lookup, TakesAFamilyOfInfinibandForNoHint) {
  rdma_addrinfo family = hints(RAI_FAMILY);
  family.ai_family = AF_IB;
  const Found one = found("192.0.2.9", "7174", &family);
  EXPECT_EQ(one->ai_family, AF_INET);
}

TEST(Lookup, FreesWhatTheProgramHasPutIn) {
  Found list = found("192.0.2.9", "7174", nullptr);
  std::free(list->ai_dst_addr);
  list->ai_dst_addr = static_cast<sockaddr*>(std::calloc(1, sizeof(sockaddr_in6)));
  list->ai_connect = std::malloc(8);
  list->ai_next = found("192.0.2.10", "7174", nullptr).release();
  list.reset();
  EXPECT_EQ(list, nullptr);
}

}  // namespace
}  // namespace softhca::abi
