// Where the kernel keeps a process out of its peer's memory, one-sided requests go as packets: they
// arrive all the same, and a target that is stopped is silent, as on a wire.
#include <sched.h>
#include <sys/prctl.h>

#include <functional>

#include "connected_child.h"
#include "forbid_copies.h"

namespace verbs_test {
namespace {

constexpr uid_t kNobody = 65534;

using Prepare = std::function<bool()>;
bool nothing() { return true; }

// WRITEs 8 bytes; gives how that ended.
ibv_wc_status write_once(Endpoint& end, const Address& peer) {
  if (!post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8), peer.start, peer.rkey))
    return IBV_WC_GENERAL_ERR;
  const auto done = end.wait();
  return done ? done->status : IBV_WC_GENERAL_ERR;
}

// Each process is made what it shall be before it opens its device. What it may not become is no
// failure: then there is nothing to see.
void expect_packets(const Prepare& target_is, const Prepare& initiator_is) {
  Talk talk;
  Signal written;
  Signal stopped;
  ForkedChild target([&] {
    HOLDS(target_is());
    Endpoint end;
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    talk.to_target.take();
    HOLDS(end.buffer[0] == 7);
    return 0;
  });
  ForkedChild initiator([&] {
    HOLDS(initiator_is());
    Endpoint end;
    HOLDS(end.is_ready());
    const Address peer = connect_initiator(end, talk);
    end.buffer[0] = 7;
    HOLDS(write_once(end, peer) == IBV_WC_SUCCESS);
    written.give();
    HOLDS(stopped.take());
    HOLDS(write_once(end, peer) == IBV_WC_RETRY_EXC_ERR);
    return 0;
  });
  run_while_stopped(target, talk, initiator, written, stopped);
}

// Root may look everywhere.
bool become_ordinary() {
  return getuid() != 0 ||
         (setresgid(kNobody, kNobody, kNobody) == 0 && setresuid(kNobody, kNobody, kNobody) == 0 &&
          prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

bool become_undumpable() { return become_ordinary() && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0; }

bool enter_own_user_namespace() { return unshare(CLONE_NEWUSER) == 0; }

bool may_make_user_namespaces() {
  ForkedChild child([] { return enter_own_user_namespace() ? 0 : 1; });
  return child.wait() == 0;
}

TEST(DirectRefused, ByASystemCallFilter) {
  expect_packets(nothing, [] { return forbid_copies(getpid()); });
}

TEST(DirectRefused, ByAProgramThatMayNotBeDumped) {
  expect_packets(become_undumpable, become_ordinary);
}

TEST(DirectRefused, BySiblingUserNamespaces) {
  if (!may_make_user_namespaces()) GTEST_SKIP() << "no user namespaces here";
  expect_packets(enter_own_user_namespace, enter_own_user_namespace);
}

}  // namespace
}  // namespace verbs_test
