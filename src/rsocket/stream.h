// Stream: one end of an rsocket connection, as a pure machine.
//
// What this end sends is copied into its send ring and from there written into a receive buffer of
// the peer. A receive ring is listed to the peer in two halves; the peer fills one after the other,
// so bytes lie in it in order. A half that the program has emptied is listed anew. Each message
// with immediate data takes a receive of the peer, so there are credits: both ends count messages,
// and each says up to which the other may send. Messages that grant credits need none; few of them
// are under way at a time, and the peer's queue pair makes them wait if it has no receive.
//
// The driver posts what it is given in this order and tells what completed in this order: sends
// with the tag of their request, messages with their immediate data. It copies bytes to and from
// the rings where it is told to.
//
// See also    docs/rsockets.md
// Threads     one owner; no locks. The peer writes to the list meanwhile
// Invariants  (1) at most requests_at_most() requests have not completed
//             (2) bytes of a ring belong to one request, or to the program, or are free
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "rsocket/message.h"

namespace softhca::rsocket {

struct StreamShape {
  std::uint32_t sends = 384;     // how many requests a queue pair takes
  std::uint32_t receives = 384;  // how many messages it takes
  std::uint32_t send_bytes = 1u << 17;
  std::uint32_t receive_bytes = 1u << 17;
  std::uint16_t mappings = 0;

  friend bool operator==(const StreamShape&, const StreamShape&) = default;
};

// The nearest shape that a stream can have.
StreamShape possible_shape(StreamShape wished);

// Two lists, of buffers and of mappings, into which the peer writes.
std::size_t list_bytes(const StreamShape& shape);

// How the peer reaches this end's memory.
struct StreamMemory {
  std::uint64_t ring_address{};  // of receives
  std::uint32_t ring_key{};
  Bytes list;  // of list_bytes(), at an address that eight divides; zeros
  std::uint64_t list_address{};
  std::uint32_t list_key{};
};

// A part of a ring.
struct Slice {
  std::uint32_t offset{};
  std::uint32_t length{};

  friend bool operator==(const Slice&, const Slice&) = default;
};
using Slices = std::array<Slice, 2>;  // the second is empty unless the ring's end is between

// A WRITE to post. What it moves are slices of the send ring, or else its text, inline.
struct Request {
  Slices slices{};
  std::array<std::byte, kMappingBytes> text{};
  std::size_t text_bytes{};
  std::uint64_t address{};  // at the peer
  std::uint32_t key{};
  std::optional<std::uint32_t> immediate{};
  std::uint32_t tag{};

  std::uint32_t ring_bytes() const { return slices[0].length + slices[1].length; }
};

// How a long send is cut: small at first, so that the first bytes travel while the next are copied.
class Pace {
 public:
  std::size_t next(std::size_t left);

 private:
  std::size_t bytes_ = 2048;
};

class Stream {
 public:
  Stream(const StreamShape& shape, const StreamMemory& memory);

  Greeting greeting() const;
  // What the peer's greeting says; from now on there is a connection.
  void begin(const Greeting& peer);

  // A receive has completed; another one is posted in its place before the next poll_notice().
  void on_message(std::uint32_t immediate);
  void on_sent(std::uint32_t tag);
  void on_failure();  // of a request
  void on_gone();     // the peer has left without a word

  // Whether the program may send bytes now: if not, something has to complete or come first.
  bool can_send() const;
  // The next at most `bytes` of the program, which are copied to the slices before it is posted.
  // REQUIRES can_send(), bytes > 0
  Request take_write(std::size_t bytes);

  // What the peer has to be told now: credits, a buffer, the end. Polled until there is nothing.
  std::optional<Request> poll_notice();

  // The program has mapped memory; the peer is told of it before the bytes that follow.
  void map(std::uint32_t entry, const Mapping& mapping);
  bool has_mapping() const { return !unsent_mappings_.empty(); }
  // REQUIRES can_send(), has_mapping()
  Request take_mapping();
  // How many entries the peer's list has.
  std::uint16_t peer_mappings() const { return peer_mappings_; }
  bool can_place() const;
  // Up to `bytes` into what the peer has mapped at the offset; nothing if that is nowhere.
  // REQUIRES can_place(), bytes > 0
  std::optional<Request> take_placement(std::uint64_t offset, std::size_t bytes);

  // Bytes that have come and that the program has not taken.
  std::uint32_t readable_bytes() const { return readable_; }
  // The first at most `bytes` of them, behind the first `after`.
  Slices readable(std::size_t bytes, std::uint32_t after = 0) const;
  // REQUIRES bytes <= readable_bytes()
  void take_bytes(std::uint32_t bytes);

  // The program will send no more (the peer is told behind all that was sent), or read no more.
  void shut_sending();
  void shut_receiving();
  // Asks the peer's queue pair for an acknowledgement, and nothing else.
  void keep_alive() { wants_keepalive_ = true; }

  bool is_open() const { return phase_ == Phase::Open; }
  bool has_failed() const { return phase_ == Phase::Failed; }
  bool may_send() const { return is_open() && sends_; }
  bool may_receive() const { return is_open() && receives_; }
  // All that was sent has completed, and nothing waits to be told.
  bool is_quiet() const;

  std::uint32_t requests_at_most() const { return shape_.sends; }
  const StreamShape& shape() const { return shape_; }

 private:
  enum class Phase : std::uint8_t { Greeting, Open, Ended, Failed };

  Slices take_ring(std::uint32_t bytes);
  void find_target();
  void on_control(std::uint32_t value);
  bool owes_credits() const;
  Request tell_credits();
  Request tell(Control control);

  const StreamShape shape_;
  const StreamMemory memory_;
  Phase phase_ = Phase::Greeting;
  bool sends_ = true;     // the program may
  bool receives_ = true;  // the peer may send, and the program may read

  // Sending.
  std::uint32_t ring_at_ = 0;  // where the next bytes are copied to
  std::uint32_t ring_free_;
  std::uint32_t writes_under_way_ = 0;
  std::uint32_t notices_under_way_ = 0;
  std::uint16_t sent_ = 0;          // messages that need a credit
  std::uint16_t granted_ = 0;       // sending stops when sent_ reaches it
  Buffer target_{};                 // where the next bytes go; what is left of a listed buffer
  std::uint32_t target_entry_ = 0;  // of our list: the buffer to follow
  std::deque<std::pair<std::uint32_t, Mapping>> unsent_mappings_;

  // Receiving.
  std::uint32_t read_at_ = 0;  // in the receive ring
  std::uint32_t readable_ = 0;
  std::uint32_t offered_;          // bytes that the peer may still write
  std::uint32_t emptied_;          // bytes that the peer may not write, and that nobody needs
  std::uint32_t offer_at_;         // the half to list next
  std::uint16_t received_ = 0;     // messages that took a credit
  std::uint16_t credits_due_ = 0;  // credits are told when received_ reaches it

  // The peer.
  Buffer peer_list_{};
  std::uint32_t peer_entry_ = 0;  // of its list: the one to write next
  std::uint16_t peer_mappings_ = 0;
  bool peer_swaps_ = false;
  std::optional<Control> wanted_{};  // an end that the peer has to be told
  bool told_end_ = false;            // Disconnect: nothing follows it
  bool wants_keepalive_ = false;
};

}  // namespace softhca::rsocket
