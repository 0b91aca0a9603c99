// What arrives: lengths, flags and bytes of every kind of message.
#include "pair.h"

namespace conformance {
namespace {

using Message = Pair;

// CASES C31: the length is that of the WRITE, and the receive's own buffer is left alone.
TEST_F(Message, AWriteWithImmediateReportsItsLength) {
  for (const std::uint32_t bytes : {0u, 1u, 4097u, 20000u})
    for (const std::uint32_t room : {0u, 4096u}) {
      std::fill(b.buffer.begin(), b.buffer.end(), static_cast<unsigned char>(0));
      std::fill_n(b.buffer.begin() + static_cast<std::ptrdiff_t>(kReceiveAt), 4096,
                  static_cast<unsigned char>(0x5a));
      ASSERT_EQ(post_receive(b, 3, room), 0);
      std::fill_n(a.buffer.begin(), bytes, static_cast<unsigned char>(0x21));
      Send send{.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                .bytes = bytes,
                .rkey = b.mr->rkey,
                .remote = b.address(0)};
      ASSERT_EQ(post(a, send), 0);
      const auto received = b.wait();
      ASSERT_TRUE(received && a.wait());
      EXPECT_EQ(received->status, IBV_WC_SUCCESS);
      EXPECT_EQ(received->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(received->byte_len, bytes);
      EXPECT_EQ(received->imm_data, 0x01020304u);
      EXPECT_EQ(received->wc_flags & IBV_WC_WITH_IMM, unsigned{IBV_WC_WITH_IMM});
      EXPECT_EQ(b.buffer[kReceiveAt], 0x5a);
      EXPECT_EQ(b.buffer[kReceiveAt + 4095], 0x5a);
      if (bytes != 0) {
        EXPECT_EQ(b.buffer[bytes - 1], 0x21);
      }
      EXPECT_EQ(b.buffer[bytes], 0);
    }
}

// Around every multiple of the path MTU, in each direction, with bytes that tell their place.
TEST_F(Message, EveryLengthArrivesWhole) {
  std::vector<std::uint32_t> lengths;
  for (const int mtu_times : {0, 1, 2, 4, 16})
    for (const int off : {-1, 0, 1}) {
      const int length = 1024 * mtu_times + off;
      if (length > 0) lengths.push_back(static_cast<std::uint32_t>(length));
    }
  unsigned char mark = 0;
  for (const std::uint32_t bytes : lengths)
    for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, opcode " + std::to_string(opcode));
      ++mark;
      Endpoint& source = opcode == IBV_WR_RDMA_READ ? b : a;
      Endpoint& target = opcode == IBV_WR_RDMA_READ ? a : b;
      std::fill(target.buffer.begin(), target.buffer.end(), static_cast<unsigned char>(0xee));
      const std::size_t from = opcode == IBV_WR_RDMA_READ ? kReceiveAt : 0;
      const std::size_t to = opcode == IBV_WR_RDMA_READ ? 0 : kReceiveAt;
      for (std::size_t i = 0; i < bytes; ++i)
        source.buffer[from + i] = static_cast<unsigned char>(mark + i * 31 + i / 251);
      ASSERT_TRUE(opcode != IBV_WR_SEND || post_receive(b, 1, 20000) == 0);
      Send send{
          .opcode = opcode, .bytes = bytes, .rkey = b.mr->rkey, .remote = b.address(kReceiveAt)};
      ASSERT_EQ(post(a, send), 0);
      const auto done = a.wait();
      ASSERT_TRUE(done);
      ASSERT_EQ(done->status, IBV_WC_SUCCESS);
      if (opcode == IBV_WR_SEND) {
        const auto received = b.wait();
        ASSERT_TRUE(received);
        EXPECT_EQ(received->byte_len, bytes);
      }
      EXPECT_TRUE(std::equal(source.buffer.begin() + static_cast<std::ptrdiff_t>(from),
                             source.buffer.begin() + static_cast<std::ptrdiff_t>(from + bytes),
                             target.buffer.begin() + static_cast<std::ptrdiff_t>(to)));
      EXPECT_EQ(target.buffer[to + bytes], 0xee);
    }
}

// A message is scattered over the list of the receive, in its order.
TEST_F(Message, IsScatteredOverTheListInItsOrder) {
  for (std::size_t i = 0; i < 3000; ++i) a.buffer[i] = static_cast<unsigned char>(i * 13);
  ibv_sge pieces[4] = {b.sge(10000, 7), b.sge(0, 0), b.sge(5000, 1500), b.sge(20000, 4000)};
  ibv_recv_wr wr{};
  wr.sg_list = pieces;
  wr.num_sge = 4;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b.qp, &wr, &bad), 0);
  ASSERT_EQ(post(a, {.bytes = 3000}), 0);
  const auto received = b.wait();
  ASSERT_TRUE(received && a.wait());
  EXPECT_EQ(received->byte_len, 3000u);
  std::size_t at = 0;
  for (const auto& [offset, bytes] : {std::pair{10000, 7}, {5000, 1500}, {20000, 1493}}) {
    const auto count = static_cast<std::size_t>(bytes);
    EXPECT_TRUE(std::equal(a.buffer.begin() + static_cast<std::ptrdiff_t>(at),
                           a.buffer.begin() + static_cast<std::ptrdiff_t>(at + count),
                           b.buffer.begin() + offset));
    at += count;
  }
}

// Completions of one queue pair come in the order of posting, unsignaled ones silently.
TEST_F(Message, CompletionsKeepTheOrderOfPosting) {
  for (std::uint64_t id = 0; id < 15; ++id) {
    Send send = write_to(b, id);
    send.flags = id % 3 == 0 ? IBV_SEND_SIGNALED : 0;
    if (id % 2 == 1) send.opcode = IBV_WR_RDMA_READ;
    ASSERT_EQ(post(a, send), 0);
  }
  for (std::uint64_t id = 0; id < 15; id += 3) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
    EXPECT_EQ(done->opcode, id % 2 == 1 ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
  }
  EXPECT_TRUE(drain(a).empty());
}

// CASES C23: a fenced request goes out when the READ before it has its bytes.
TEST_F(Message, AFencedWriteCarriesWhatTheReadBroughtBefore) {
  for (unsigned char round = 1; round < 100; ++round) {
    std::fill_n(b.buffer.begin() + static_cast<std::ptrdiff_t>(kReceiveAt), 8, round);
    std::fill_n(a.buffer.begin(), 8, static_cast<unsigned char>(0));
    Send read{.opcode = IBV_WR_RDMA_READ, .rkey = b.mr->rkey, .remote = b.address(kReceiveAt)};
    read.flags = 0;
    Send write = write_to(b, 2);
    write.remote = b.address(0);
    write.flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED;
    ASSERT_EQ(post(a, read), 0);
    ASSERT_EQ(post(a, write), 0);
    ASSERT_TRUE(a.wait());
    EXPECT_EQ(b.buffer[0], round);
    EXPECT_EQ(b.buffer[7], round);
  }
}

}  // namespace
}  // namespace conformance
