// Two processes whose endpoints are connected, and what they tell each other besides.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <functional>

#include "forked_child.h"
#include "traffic.h"

namespace verbs_test {

struct Address {
  ibv_gid gid;
  std::uint32_t qpn;
  std::uint32_t rkey;
  std::uint64_t start;
};

inline Address address_of(const Endpoint& end) {
  return {end.gid(), end.qp->qp_num, end.mr->rkey, end.address(0)};
}

// What two processes tell each other besides.
struct Talk {
  Signal to_target;
  Signal to_initiator;
};

inline bool reach_rts(Endpoint& end, const Address& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  return ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0 && end.to_init() == 0 &&
         end.to_rtr(peer.gid, peer.qpn) == 0 && end.to_rts() == 0;
}

inline bool connect_target(Endpoint& end, Talk& talk, Address self) {
  Address peer;
  talk.to_initiator.send(self);
  if (!talk.to_target.receive(peer) || !reach_rts(end, peer)) return false;
  talk.to_initiator.give();
  return true;
}

// Gives the target's address; its queue pair is in RTS.
inline Address connect_initiator(Endpoint& end, Talk& talk) {
  Address peer{};
  EXPECT_TRUE(talk.to_initiator.receive(peer));
  talk.to_target.send(address_of(end));
  EXPECT_TRUE(reach_rts(end, peer));
  EXPECT_TRUE(talk.to_initiator.take());
  return peer;
}

// A process with a connected endpoint that does act(endpoint).
inline ForkedChild start_target(Talk& talk, const std::function<int(Endpoint&)>& act,
                                const Options& options = {}) {
  return ForkedChild([&] {
    Endpoint end(options);
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    return act(end);
  });
}

inline void stop(pid_t pid) {
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
}

// The initiator says that it is `ready`, then goes on while its target is stopped, until it ends.
// Then the target, too, is told to.
inline void run_while_stopped(ForkedChild& target, Talk& talk, ForkedChild& initiator,
                              Signal& ready, Signal& stopped) {
  ASSERT_TRUE(ready.take());
  stop(target.pid());
  stopped.give();
  initiator.expect_exit(0);
  kill(target.pid(), SIGCONT);
  talk.to_target.give();
  target.expect_exit(0);
}

// The completion of what was just posted is there, without a wait.
inline ibv_wc_status status_now(Endpoint& end) {
  ibv_wc wc{};
  return ibv_poll_cq(end.cq, 1, &wc) == 1 ? wc.status : IBV_WC_GENERAL_ERR;
}

// How often a test kills somebody; SOFTHCA_ROUNDS says otherwise.
inline int rounds_wanted(int usual) {
  const char* const wanted = std::getenv("SOFTHCA_ROUNDS");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : usual;
}

}  // namespace verbs_test
