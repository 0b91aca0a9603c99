// Link: moves frames between devices. A cable, with one method for each end and one for time.
//
// A frame is a RoCEv2 packet with the IP and UDP headers that it has on the wire. Links know
// nothing of what is in it. Loss, delay and capture are decorators around a link.
//
// Threads  owned by the device's owner
#pragma once
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "local/ring_table.h"
#include "trace/reason.h"
#include "wire/datagram.h"

namespace softhca::link {

struct Frame {
  wire::Datagram datagram;
  ConstBytes bytes;  // UDP payload: BTH ... ICRC. Not owned.
  // Of a frame that arrived in a burst that came whole: its place there, and likely its
  // identification.
  std::uint16_t place_in_burst = 0;
  // False: it stays in the memory of this host, which does not corrupt, and its last four bytes are
  // not the ICRC but anything. The bytes of one that was received so may change at any time.
  bool has_icrc = true;
};

// How frames go somewhere: through memory, without an ICRC, or else perhaps why not.
struct Way {
  bool is_memory{};
  trace::ReasonId why_not{};
  friend bool operator==(const Way&, const Way&) = default;
};

class Link {
 public:
  virtual ~Link() = default;

  // Offers frames in order, takes as many as it can now and says how many. Their bytes are copied
  // or gone when this returns. A frame that the host's stack refuses for good (no route) counts as
  // taken: it is lost, as on a cable. Frames that were not taken leave no trace.
  virtual std::size_t send(std::span<const Frame> frames, Time now) = 0;

  // Frames that have arrived by `now`, at most out.size(). Their bytes stay valid until the next
  // call of this method, or of release().
  virtual std::size_t receive(std::span<Frame> out, Time now) = 0;
  // Whose bytes they are may wait for them.
  virtual void release() {}

  // When a frame that is already under way arrives; never() if none is or nobody can know.
  virtual Time next_arrival() const = 0;

  // How the next frame for that queue pair goes, and so what it needs.
  virtual Way way_to(const wire::Datagram&, wire::Qpn, Time) { return {}; }

  // Where the frames end that lie in this host's memory for the device and were not received yet;
  // and whether all of those were received.
  virtual std::vector<local::RingPlace> waiting() { return {}; }
  virtual bool has_received(std::span<const local::RingPlace>) { return true; }

  // Whether a frame for that queue pair goes through memory and certainly finds room there now.
  virtual bool has_memory_room(const wire::Datagram&, wire::Qpn, Time) { return false; }

  // How many of `wanted` frames for that queue pair should be made now. What is made and finds no
  // room is in the way of others.
  virtual std::size_t room_for(const wire::Datagram&, wire::Qpn, std::size_t wanted, Time) {
    return wanted;
  }
};

}  // namespace softhca::link
