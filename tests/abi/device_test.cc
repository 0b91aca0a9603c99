// Devices, their attributes, the port and its tables.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>

#include "endpoint.h"

extern "C" int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index,
                                  int* type);

namespace verbs_test {
namespace {

class Device : public ::testing::Test {
 protected:
  void SetUp() override {
    context = open_first();
    ASSERT_NE(context, nullptr);
  }
  void TearDown() override { EXPECT_TRUE(context == nullptr || ibv_close_device(context) == 0); }
  ibv_context* context = nullptr;
};

TEST(DeviceList, IsTerminatedAndGivesTheSamePointersAgain) {
  int count = 0;
  ibv_device** first = ibv_get_device_list(&count);
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(count, 1);
  EXPECT_EQ(first[1], nullptr);
  ibv_device** second = ibv_get_device_list(nullptr);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_STREQ(ibv_get_device_name(first[0]), "softhca0");
  EXPECT_STREQ(first[0]->dev_name, "uverbs0");
  EXPECT_EQ(first[0]->transport_type, IBV_TRANSPORT_IB);
  EXPECT_EQ(first[0]->node_type, IBV_NODE_CA);
  EXPECT_NE(ibv_get_device_guid(first[0]), 0u);
  EXPECT_GE(ibv_get_device_index(first[0]), 0);
  ibv_free_device_list(first);
  ibv_free_device_list(second);
}

TEST_F(Device, HasDescriptorsOfItsOwn) {
  EXPECT_NE(::fcntl(context->async_fd, F_GETFD) & FD_CLOEXEC, 0);
  struct stat file {};
  ASSERT_EQ(::fstat(context->cmd_fd, &file), 0);
  EXPECT_NE(file.st_ino, 0u);
  const int copy = ::dup(context->cmd_fd);
  EXPECT_GE(copy, 0);
  ::close(copy);
  EXPECT_EQ(context->num_comp_vectors, 1);
}

TEST_F(Device, OffersNoMoreThanItHas) {
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  EXPECT_NE(attr.vendor_id, 0u);
  EXPECT_NE(attr.node_guid, 0u);
  EXPECT_EQ(attr.phys_port_cnt, 1);
  EXPECT_GT(attr.max_srq, 0);
  EXPECT_GT(attr.max_srq_wr, 0);
  EXPECT_GT(attr.max_srq_sge, 0);
  EXPECT_GT(attr.max_mw, 0);
  EXPECT_GT(attr.max_mcast_grp, 0);
  EXPECT_EQ(attr.atomic_cap, IBV_ATOMIC_HCA);
  EXPECT_GT(std::string(attr.fw_ver).size(), 0u);
  EXPECT_EQ(attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
                                     IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS),
            unsigned{IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                     IBV_DEVICE_MEM_MGT_EXTENSIONS});
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_XRC, 0u);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE, 0u);
}

TEST_F(Device, TakesItsPartNumberFromTheEnvironment) {
  ::setenv("SOFTHCA_PART_ID", "4119", 1);
  ibv_device_attr attr{};
  EXPECT_EQ(ibv_query_device(context, &attr), 0);
  ::unsetenv("SOFTHCA_PART_ID");
  EXPECT_EQ(attr.vendor_part_id, 4119u);
}

TEST_F(Device, TellsExtendedAttributesThatAgree) {
  ibv_device_attr_ex extended;
  std::memset(static_cast<void*>(&extended), 0xee, sizeof extended);
  ibv_device_attr plain{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &extended), 0);
  ASSERT_EQ(ibv_query_device(context, &plain), 0);
  EXPECT_EQ(std::memcmp(&extended.orig_attr, &plain, sizeof plain), 0);
  EXPECT_EQ(extended.phys_port_cnt_ex, plain.phys_port_cnt);
  EXPECT_EQ(extended.pci_atomic_caps.fetch_add, 0u);
  EXPECT_NE(extended.max_dm_size, 0u);
}

TEST_F(Device, ReportsAnActiveEthernetPort) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.max_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.gid_tbl_len, 16);
  EXPECT_EQ(port.pkey_tbl_len, 1);
  EXPECT_NE(port.max_msg_sz, 0u);
  EXPECT_EQ(port.flags & IBV_QPF_GRH_REQUIRED, IBV_QPF_GRH_REQUIRED);
  EXPECT_EQ(ibv_query_port(context, 0, &port), EINVAL);
  EXPECT_EQ(ibv_query_port(context, 2, &port), EINVAL);
}

TEST_F(Device, AnswersForEveryGidSlotAndSaysWhichAreEmpty) {
  ibv_gid_entry table[16];
  const ssize_t filled = ibv_query_gid_table(context, table, 16, 0);
  ASSERT_GT(filled, 0);
  ASSERT_LT(filled, 16);
  std::set<std::uint32_t> indices;
  for (ssize_t i = 0; i < filled; ++i) {
    indices.insert(table[i].gid_index);
    EXPECT_EQ(table[i].gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2));
    EXPECT_NE(table[i].ndev_ifindex, 0u);
  }
  const ibv_gid zero{};
  for (std::uint32_t i = 0; i < 16; ++i) {
    const bool has = indices.contains(i);
    ibv_gid gid{};
    ibv_gid_entry entry{};
    int type = -1;
    ASSERT_EQ(ibv_query_gid(context, 1, static_cast<int>(i), &gid), 0);
    EXPECT_EQ(std::memcmp(&gid, &zero, sizeof gid) != 0, has) << i;
    EXPECT_EQ(ibv_query_gid_ex(context, 1, i, &entry, 0), has ? 0 : ENODATA) << i;
    EXPECT_EQ(ibv_query_gid_type(context, 1, i, &type), 0);
    EXPECT_EQ(type, has ? 1 : 0);
  }
}

TEST_F(Device, RefusesGidQueriesOutOfRange) {
  ibv_gid gid{};
  ibv_gid_entry entry{};
  errno = 0;
  EXPECT_EQ(ibv_query_gid(context, 1, 16, &gid), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_query_gid(context, 1, -1, &gid), -1);
  EXPECT_EQ(ibv_query_gid(context, 2, 0, &gid), -1);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 16, &entry, 0), EINVAL);
  EXPECT_EQ(ibv_query_gid_table(context, &entry, 0, 0), -EINVAL);
}

TEST_F(Device, HasThePlainIpv4GidFirst) {
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
  const unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_EQ(std::memcmp(gid.raw, mapped, sizeof mapped), 0);
}

TEST_F(Device, HasOnePartitionKey) {
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, pkey), 0);
  EXPECT_EQ(ibv_query_pkey(context, 1, 1, &pkey), -1);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, 0x1234), -1);
}

TEST_F(Device, AnswersEopnotsuppForWhatItDoesNotOffer) {
  ibv_counters_init_attr counters{};
  errno = 0;
  EXPECT_EQ(ibv_create_counters(context, &counters), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_flow_action_esp_attr action{};
  errno = 0;
  EXPECT_EQ(ibv_create_flow_action_esp(context, &action), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Device, IsSafeToForkWith) {
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

TEST_F(Device, TakesWhatIsLeftWithItWhenItIsClosed) {
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr);
  ASSERT_NE(ibv_create_cq(context, 4, nullptr, ibv_create_comp_channel(context), 0), nullptr);
  std::vector<char> memory(4096);
  ASSERT_NE(ibv_reg_mr(pd, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
  EXPECT_EQ(ibv_close_device(context), 0);
  context = nullptr;
}

TEST(Names, AreThoseOfTheSpecification) {
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
  EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(31)), "unknown");
  EXPECT_STREQ(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
  EXPECT_STREQ(ibv_event_type_str(IBV_EVENT_QP_ACCESS_ERR),
               "local access violation work queue error");
}

TEST(Rates, ConvertBothWays) {
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_5_GBPS), 2);
  EXPECT_EQ(mult_to_ibv_rate(2), IBV_RATE_5_GBPS);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
  EXPECT_EQ(mbps_to_ibv_rate(12345), IBV_RATE_MAX);
  EXPECT_EQ(mult_to_ibv_rate(-1), IBV_RATE_MAX);
}

}  // namespace
}  // namespace verbs_test
