// UdpLink: frames as real UDP datagrams, on the addresses of one interface.
//
// Holds no port until an address is opened. Sends from source ports 0xc000-0xffff, so that routers
// spread queue pairs over paths; the port is part of what the ICRC covers, so ask source_port_for()
// before the packet is made. Packets for QPNs of other processes that land here are forwarded.
//
// Where another user has the port, this link lodges there: what is for it comes by mail from him,
// until he is gone and the port is taken (local/lodging.h).
//
// Multicast groups have a socket each, bound to the group's address: the kernel gives every member
// of this host a copy, so nothing is steered or forwarded.
//
// Looks at every socket only now and then: an empty receive() costs one system call for each
// address that is active. IPv4 frames arrive with a hidden identification.
//
// Threads  owned by the device's owner
// See also local/port_group.h, local/mailbox.h
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "link/link.h"
#include "local/mailbox.h"
#include "local/port_group.h"
#include "local/qpn_block.h"
#include "local/service_names.h"
#include "trace/journal.h"
#include "wire/psn.h"

namespace softhca::link {

class UdpLink final : public Link {
 public:
  // The interface and the port are those of the block. REQUIRES: `block` and `tracer` live longer.
  UdpLink(local::QpnBlock& block, trace::Tracer& tracer, bool steering = true);
  ~UdpLink() override;

  // Opens a local address (or does nothing if it is open). It becomes active.
  Result<void, local::PortFailure> open(const wire::Gid& address);
  // An inactive address is looked at rarely. REQUIRES: it is open.
  void set_active(const wire::Gid& address, bool active);
  bool is_open(const wire::Gid& address) const;

  // Receives what is sent to a multicast group on the interface, from now until leave().
  Result<void, local::PortFailure> join(const wire::Gid& group);
  // Its descriptor stays until close_left(): somebody may be listening to it.
  void leave(const wire::Gid& group);
  // Nobody listens to descriptors that fds() does not name any more.
  void close_left() { left_.clear(); }

  // From which port the packets of this QP leave that address. REQUIRES: it is open.
  std::uint16_t source_port_for(const wire::Gid& address, wire::Qpn qpn);

  std::size_t send(std::span<const Frame> frames, Time now) override;
  std::size_t receive(std::span<Frame> out, Time now) override;
  Time next_arrival() const override;  // when to look whether a port is free

  // The next receive() looks at every socket, or besides the active ones at those that the poller
  // found readable.
  void expect_any() { look_everywhere_ = true; }
  void expect(std::span<const int> readable);

  // Packets for queue pair 1, which all processes of the host share: says whose each is.
  // What nobody is known for stays here; what it was not looked for is dropped.
  using ManagementRouter = std::function<local::ServiceNames::Listener(const Frame&)>;
  void set_management_router(ManagementRouter router) { management_ = std::move(router); }

  // Passes a frame to the process of this host that has the block. False: nobody has it.
  bool forward(std::uint32_t to_block, const Frame& frame);

  // What a poller watches: the mailbox, then what each open address has.
  std::vector<int> fds() const;
  // Another number when fds() has changed, even if a new one has the number of an old one.
  std::uint32_t fds_version() const { return fds_version_; }

  // In the child of a fork: closes everything, leaves nothing.
  void abandon();

 private:
  struct Address;
  struct Room;
  struct Group {
    wire::Gid gid;
    os::UdpSocket socket;
  };
  Address* find(const wire::Gid& gid) const;
  bool goes_straight(const Frame& frame);
  std::size_t send_run(std::span<const Frame> frames);
  std::size_t burst_at(std::span<const Frame> frames) const;
  std::size_t prepare(std::span<const Frame> frames);
  void look(Time now);
  std::size_t read_batch(Address& address);
  void read_group(const Group& group);
  void receive_udp(Address& address, Time now);
  void take_apart(Address& address, const os::Arrival& arrival);
  void receive_mail(Time now);
  bool admits(std::uint32_t uid, Time now);
  bool believes(std::uint32_t uid, const wire::Gid& destination, Time now);
  static Frame frame_of(Address& address, const os::Arrival& arrival);
  void forward_rest(Address& address);
  bool belongs_elsewhere(Address& address, const Frame& frame);

  local::QpnBlock& block_;
  trace::Tracer& tracer_;
  bool steering_;
  ManagementRouter management_;
  std::vector<std::unique_ptr<Address>> addresses_;
  std::vector<Group> groups_;
  std::vector<Group> left_;     // groups that it heard before
  std::unique_ptr<Room> room_;  // null until the first address is opened
  std::uint32_t fds_version_ = 0;
  bool bursts_ = true;  // the kernel cuts bursts apart, as far as is known
  bool look_everywhere_ = false;
  std::uint32_t calls_ = 0;       // of receive(); says when to look at the idle sockets
  std::uint32_t mail_calls_ = 0;  // for how many more calls the mailbox counts as active
  std::size_t turn_ = 0;          // which address is looked at first
};

}  // namespace softhca::link
