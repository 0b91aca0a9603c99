// RingLink: a decorator by which frames for other processes of this host go through memory.
//
// Everything else takes the link inside: frames for other hosts and other users, and those that
// have an ICRC. Who sends asks first (way_to), and leaves the ICRC out where nobody looks at it. A
// process that is on this host is found once, and looked for again when it has gone.
//
// A full ring takes no more until its reader has taken some, and who asks (room_for) makes nothing
// for it meanwhile. One whose reader takes nothing for long (it is stopped) loses frames, as a full
// socket does: then the connections' own timers say so.
//
// While frames come through the rings only, the link inside, whose sockets cost a system call each,
// is looked at now and then.
//
// Threads   owned by the device's owner
// See also  local/ring_table.h; ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "link/link.h"
#include "local/ring_table.h"
#include "trace/journal.h"

namespace softhca::link {

class RingLink final : public Link {
 public:
  // A process of this host that has a ring for us.
  struct Peer {
    local::RingSender sender;
    std::function<bool(Time now)> is_there;  // it keeps the ring's memory, too
  };
  struct Found {
    std::optional<Peer> peer;
    trace::ReasonId why_not{};  // None: nobody is there
  };
  struct Parts {
    Link& inner;
    local::RingTable& rings;  // our own
    trace::Tracer& tracer;
    // Whether an address is one of this device, so that other processes of the host may have it.
    std::function<bool(const wire::Gid&)> is_own_address;
    // Who has a block of QPNs.
    std::function<Found(std::uint32_t block)> find;
    std::function<void(std::uint32_t block)> wake;
  };
  // REQUIRES: all of them live longer.
  explicit RingLink(Parts parts) : parts_(std::move(parts)) {}

  std::size_t send(std::span<const Frame> frames, Time now) override;
  std::size_t receive(std::span<Frame> out, Time now) override;
  void release() override { parts_.rings.release(); }
  Time next_arrival() const override { return parts_.inner.next_arrival(); }
  Way way_to(const wire::Datagram& path, wire::Qpn qpn, Time now) override;

  std::vector<local::RingPlace> waiting() override { return parts_.rings.waiting(); }
  bool has_received(std::span<const local::RingPlace> places) override {
    return parts_.rings.has_received(places);
  }
  bool has_memory_room(const wire::Datagram& path, wire::Qpn qpn, Time now) override;
  std::size_t room_for(const wire::Datagram& path, wire::Qpn qpn, std::size_t wanted,
                       Time now) override;

  // The next receive() looks at the link inside.
  void expect() { expects_ = true; }

 private:
  struct Route {
    std::optional<Peer> peer;
    trace::ReasonId why_not{};
    Time again_at{};                  // when somebody who was not there is looked for again
    Time full_since = Time::never();  // its ring takes nothing
  };
  Route& route_to(std::uint32_t block, Time now);
  Route* find(std::uint32_t block);
  Route* route_of(const wire::Datagram& path, wire::Qpn qpn, Time now);
  bool is_own(const wire::Gid& address, Time now);
  enum class Put : std::uint8_t { Taken, Lost, Later };
  Put put(Route& route, const Frame& frame, Time now);
  void show(std::uint32_t block);
  std::size_t send_run(std::span<const Frame> frames, Time now);
  std::size_t receive_rings(std::span<Frame> out);
  std::size_t receive_inner(std::span<Frame> out, Time now);
  bool is_inner_due(bool anything);

  Parts parts_;
  std::unordered_map<std::uint32_t, Route> routes_;
  std::uint32_t last_block_ = 0;
  Route* last_ = nullptr;  // to last_block_, if it is known
  wire::Gid asked_;        // whether it is an address of this device
  bool is_own_ = false;
  Time ask_again_at_{};
  std::array<local::RingFrame, 64> arrived_;
  bool expects_ = true;
  bool rings_filled_ = false;      // the last call
  std::uint32_t inner_calls_ = 0;  // for how many more calls the link inside counts as active
  std::uint32_t ring_calls_ = 0;   // for how many more calls the rings do
  std::uint32_t calls_ = 0;
};

}  // namespace softhca::link
