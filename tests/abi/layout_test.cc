// Sizes and offsets that programs were compiled with, whatever header we were compiled with.
#include <cstddef>
#include <cstdint>

#include "endpoint.h"

namespace verbs_test {
namespace {

static_assert(sizeof(ibv_device) == 664 && sizeof(ibv_context) == 328);
static_assert(sizeof(ibv_cq_ex) == 288 && sizeof(ibv_wc) == 48 && sizeof(ibv_send_wr) == 128);
static_assert(offsetof(ibv_context_ops, poll_cq) == 88);
static_assert(offsetof(ibv_context_ops, post_send) == 200);
static_assert(sizeof(ibv_device_attr_ex) == 400 && sizeof(ibv_qp_init_attr_ex) == 136);

// How a program of any age finds an operation: measured back from the context.
template <class T>
T before(ibv_context* context, std::size_t bytes) {
  T value;
  std::memcpy(&value, reinterpret_cast<std::byte*>(context) - bytes, sizeof value);
  return value;
}

// CASES C83: programs of every release find what they look for.
TEST(Layout, TellsTheSizeOfTheNewestContext) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(before<std::size_t>(context, 8), 696u);
  EXPECT_EQ(context->abi_compat, __VERBS_ABI_IS_EXTENDED);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(Layout, FillsEverySlotThatProgramsCallWithoutLooking) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  // verbs_context from query_port (320 before the context) to close_xrcd (24), without `priv`.
  for (std::size_t at = 24; at <= 320; at += 8) {
    if (at == 112) continue;
    EXPECT_NE(before<void*>(context, at), nullptr) << at;
  }
  for (std::size_t at = 0; at < sizeof(ibv_context_ops); at += 8) {
    void* slot = nullptr;
    std::memcpy(&slot, reinterpret_cast<std::byte*>(&context->ops) + at, sizeof slot);
    EXPECT_NE(slot, nullptr) << at;
  }
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(Layout, HasZerosBehindADevice) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_GT(count, 0);
  const auto* const behind = reinterpret_cast<const unsigned char*>(list[0]) + sizeof(ibv_device);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(behind[i], 0) << i;
  ibv_free_device_list(list);
}

TEST(Layout, FillsPortAttributesAsFarAsTheCallerKnowsThem) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  auto query = before<decltype(verbs_context::query_port)>(context, 320);
  for (const std::size_t length : {48u, 52u, 56u, 64u}) {
    unsigned char bytes[80];
    std::memset(bytes, 0xee, sizeof bytes);
    ASSERT_EQ(query(context, 1, reinterpret_cast<ibv_port_attr*>(bytes), length), 0);
    EXPECT_EQ(bytes[46], IBV_LINK_LAYER_ETHERNET) << length;
    EXPECT_EQ(bytes[length], 0xee) << length;
    EXPECT_TRUE(length <= 56 || bytes[length - 1] == 0) << length;
  }
  EXPECT_EQ(ibv_close_device(context), 0);
}

}  // namespace
}  // namespace verbs_test
