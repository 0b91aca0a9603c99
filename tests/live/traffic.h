// Traffic between two endpoints, checked to the byte.
#pragma once
#include <algorithm>
#include <cstdint>

#include "endpoint.h"

namespace verbs_test {

inline bool post_write(Endpoint& from, std::uint64_t to, std::uint32_t rkey, std::uint32_t bytes) {
  return post_request(from, IBV_WR_RDMA_WRITE, from.sge(0, bytes), to, rkey);
}

// `rounds` WRITEs of some packets each, every one with bytes of its own. Says whether all arrived.
inline bool exchange(Endpoint& a, Endpoint& b, int rounds, std::uint32_t bytes = 5000) {
  static unsigned char next = 0;
  for (int round = 0; round < rounds; ++round) {
    ++next;
    std::fill_n(a.buffer.begin(), bytes, next);
    if (!post_write(a, b.address(0), b.mr->rkey, bytes)) return false;
    const auto done = a.wait();
    if (!done || done->status != IBV_WC_SUCCESS) return false;
    if (!std::all_of(b.buffer.begin(), b.buffer.begin() + bytes,
                     [](unsigned char x) { return x == next; }))
      return false;
  }
  return true;
}

// Both ends of a connection in this process.
struct Pair {
  explicit Pair(const Options& options = {}) : a(options), b(options) {
    if (a.is_ready() && b.is_ready()) connect(a, b);
  }
  bool is_connected() const { return a.is_ready() && b.is_ready() && a.state() == IBV_QPS_RTS; }
  bool works(int rounds = 20) { return is_connected() && exchange(a, b, rounds); }

  Endpoint a;
  Endpoint b;
};

}  // namespace verbs_test
