#include "stream_worlds.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/prng.h"
#include "rsocket/stream.h"

namespace softhca::rsocket {
namespace {

constexpr std::uint32_t kRingKey = 11;
constexpr std::uint32_t kListKey = 12;
constexpr std::uint32_t kMappedKey = 13;
constexpr std::uint64_t kRingAt = 0x100000;
constexpr std::uint64_t kListAt = 0x200000;
constexpr std::uint64_t kMappedAt = 0x300000;
constexpr std::uint64_t kMappedOffset = 77;
constexpr std::size_t kMappedBytes = 4096;
constexpr int kStepsAtMost = 2'000'000;

std::byte pattern(std::uint64_t salt, std::uint64_t position) {
  return static_cast<std::byte>(((position + salt) * 0x9e3779b97f4a7c15u) >> 56);
}

// What was placed before the stream was at `position`.
struct Placed {
  std::uint64_t position;
  std::size_t into;
  std::size_t bytes;
};

struct Side {
  Side(const StreamShape& shape, std::uint64_t salt_in, std::uint64_t total_in, bool big)
      : salt(salt_in),
        total(total_in),
        big_endian(big),
        send_ring(shape.send_bytes),
        receive_ring(shape.receive_bytes),
        list(list_bytes(shape)),
        mapped(kMappedBytes),
        receives(shape.receives),
        stream(shape, {kRingAt, kRingKey, list, kListAt, kListKey}) {}

  Greeting greeting() const {
    Greeting told = stream.greeting();
    told.big_endian = big_endian;
    return told;
  }

  std::uint64_t salt;
  std::uint64_t total;  // bytes that the program will write
  bool big_endian;
  std::uint64_t written = 0;
  std::uint64_t read = 0;
  std::size_t placed = 0;
  bool has_mapped = false;
  bool has_shut = false;
  bool has_closed = false;
  std::vector<std::byte> send_ring, receive_ring, list, mapped;
  std::deque<Request> posted;          // not executed
  std::deque<std::uint32_t> sent;      // executed, not polled
  std::deque<std::uint32_t> received;  // immediate data, not polled
  std::deque<Placed> placements;       // by this side, not read past by the other
  std::uint32_t receives;              // posted
  Stream stream;
};

class World {
 public:
  explicit World(std::uint64_t seed)
      : prng_(seed),
        sides_{{{shape(), 1, prng_.below(60'000), prng_.chance(1, 4)},
                {shape(), 2, prng_.below(60'000), prng_.chance(1, 4)}}} {
    sides_[0].stream.begin(sides_[1].greeting());
    sides_[1].stream.begin(sides_[0].greeting());
  }

  StreamingOutcome run() {
    for (int step = 0; outcome_.wrong.empty(); ++step) {
      if (step == kStepsAtMost) {
        fail("nothing goes on");
      } else if (is_over()) {
        break;
      } else {
        const std::size_t at = prng_.below(2);
        turn(sides_[at], sides_[1 - at]);
      }
    }
    return outcome_;
  }

 private:
  StreamShape shape() {
    return possible_shape({.sends = static_cast<std::uint32_t>(prng_.below(40)),
                           .receives = static_cast<std::uint32_t>(prng_.below(40)),
                           .send_bytes = static_cast<std::uint32_t>(prng_.below(20'000)),
                           .receive_bytes = static_cast<std::uint32_t>(prng_.below(20'000)),
                           .mappings = static_cast<std::uint16_t>(prng_.below(3))});
  }

  bool is_over() const {
    return std::ranges::all_of(sides_, [](const Side& side) {
      return side.has_closed && !side.stream.is_open() && side.posted.empty() &&
             side.sent.empty() && side.received.empty();
    });
  }

  void turn(Side& side, Side& peer) {
    switch (prng_.below(8)) {
      case 0:
      case 1:
        return write(side);
      case 2:
        return read(side, peer);
      case 3:
        return map(side);
      case 4:
        return place(side, peer);
      case 5:
        return shut(side, peer);
      case 6:
        return prng_.chance(1, slowness_) ? progress(side) : void();
      default:
        return execute(side, peer);
    }
  }

  void write(Side& side) {
    Stream& stream = side.stream;
    while (stream.has_mapping() && stream.can_send()) post(side, stream.take_mapping());
    if (stream.has_mapping() || !stream.can_send() || side.written == side.total) return;
    const std::uint64_t wished = 1 + prng_.below(prng_.chance(1, 2) ? 8 : 10'000);
    const Request request = stream.take_write(std::min(wished, side.total - side.written));
    fill(side, request, side.written);
    side.written += request.ring_bytes();
    post(side, request);
  }

  void fill(Side& side, const Request& request, std::uint64_t position) {
    for (const Slice slice : request.slices)
      for (std::uint32_t i = 0; i < slice.length; ++i)
        side.send_ring[slice.offset + i] = pattern(side.salt, position++);
  }

  void read(Side& side, Side& peer) {
    const auto bytes =
        static_cast<std::uint32_t>(prng_.below(std::uint64_t{side.stream.readable_bytes()} + 1));
    for (const Slice slice : side.stream.readable(bytes)) {
      for (std::uint32_t i = 0; i < slice.length; ++i) {
        if (side.receive_ring[slice.offset + i] != pattern(peer.salt, side.read++))
          return fail("another byte was read than was written");
      }
    }
    side.stream.take_bytes(bytes);
    outcome_.bytes += bytes;
    for (; !peer.placements.empty() && peer.placements.front().position < side.read;
         peer.placements.pop_front())
      check_placed(side, peer);
  }

  void check_placed(const Side& side, const Side& peer) {
    const Placed placed = peer.placements.front();
    for (std::size_t i = 0; i < placed.bytes; ++i)
      if (side.mapped[placed.into + i] != pattern(peer.salt, placed.into + i))
        return fail("what was placed is not there when the bytes behind it are");
    outcome_.placed += placed.bytes;
  }

  void map(Side& side) {
    if (side.has_mapped || side.stream.peer_mappings() == 0 || !side.stream.is_open()) return;
    side.has_mapped = true;
    side.stream.map(side.stream.peer_mappings() - 1u,
                    {kMappedOffset, {kMappedAt, kMappedKey, kMappedBytes}});
  }

  void place(Side& side, Side& peer) {
    if (!side.stream.can_place() || side.placed == kMappedBytes) return;
    const auto request = side.stream.take_placement(kMappedOffset + side.placed,
                                                    1 + prng_.below(kMappedBytes - side.placed));
    if (!request) return;
    if (!peer.has_mapped) return fail("bytes were placed where nothing is mapped");
    fill(side, *request, side.placed);
    side.placements.push_back({side.written, side.placed, request->ring_bytes()});
    side.placed += request->ring_bytes();
    post(side, *request);
  }

  void shut(Side& side, const Side& peer) {
    if (side.written < side.total || (side.stream.has_mapping() && side.stream.is_open())) return;
    if (side.read == peer.total && !side.has_closed) {
      side.has_closed = true;
      side.stream.shut_receiving();
      side.stream.shut_sending();
    } else if (!side.has_shut && prng_.chance(1, 2)) {
      ++outcome_.half_shut;
      side.stream.shut_sending();
    }
    side.has_shut = true;
  }

  void post(Side& side, const Request& request) {
    side.posted.push_back(request);
    if (side.posted.size() + side.sent.size() > side.stream.requests_at_most())
      fail("the send queue is full");
  }

  // What a driver does whenever it is called.
  void progress(Side& side) {
    for (std::uint64_t n = prng_.below(4); n > 0 && !side.received.empty(); --n) {
      side.stream.on_message(side.received.front());
      side.received.pop_front();
      ++side.receives;
    }
    for (std::uint64_t n = prng_.below(4); n > 0 && !side.sent.empty(); --n) {
      side.stream.on_sent(side.sent.front());
      side.sent.pop_front();
    }
    if (side.stream.has_failed()) return fail("a connection has failed");
    while (const auto request = side.stream.poll_notice()) post(side, *request);
  }

  // The queue pair of a side executes its oldest request.
  void execute(Side& side, Side& peer) {
    if (side.posted.empty()) return;
    const Request request = side.posted.front();
    if (request.immediate && peer.receives == 0) {
      ++outcome_.waits;
      return;
    }
    side.posted.pop_front();
    std::vector<std::byte> bytes(request.text.begin(), request.text.begin() + request.text_bytes);
    for (const Slice slice : request.slices)
      bytes.insert(bytes.end(), side.send_ring.begin() + slice.offset,
                   side.send_ring.begin() + slice.offset + slice.length);
    if (!bytes.empty()) store(peer, request, bytes);
    side.sent.push_back(request.tag);
    if (!request.immediate) return;
    --peer.receives;
    peer.received.push_back(*request.immediate);
  }

  void store(Side& peer, const Request& request, std::vector<std::byte>& bytes) {
    const bool into_ring = request.key == kRingKey;
    const bool into_list = request.key == kListKey;
    std::vector<std::byte>& memory = into_ring   ? peer.receive_ring
                                     : into_list ? peer.list
                                                 : peer.mapped;
    const std::uint64_t base = into_ring ? kRingAt : into_list ? kListAt : kMappedAt;
    const std::uint64_t at = request.address - base;
    if (at > memory.size() || bytes.size() > memory.size() - at)
      return fail("a request leaves the memory that it is for");
    if (into_list && peer.big_endian) turn_around(bytes);
    std::ranges::copy(bytes, memory.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // An entry as a machine of the other order reads it: 64 bits each, but 32 the last two.
  static void turn_around(std::vector<std::byte>& entry) {
    const auto words = static_cast<std::ptrdiff_t>(entry.size()) - 8;
    for (std::ptrdiff_t at = 0; at < words; at += 8)
      std::reverse(entry.begin() + at, entry.begin() + at + 8);
    for (std::ptrdiff_t at = words; at < words + 8; at += 4)
      std::reverse(entry.begin() + at, entry.begin() + at + 4);
  }

  void fail(const char* why) {
    if (outcome_.wrong.empty()) outcome_.wrong = why;
  }

  Prng prng_;
  const std::uint64_t slowness_ = 1 + 40 * prng_.below(2);  // of programs that look what has come
  std::array<Side, 2> sides_;
  StreamingOutcome outcome_;
};

}  // namespace

StreamingOutcome run_streaming_world(std::uint64_t seed) { return World(seed).run(); }

}  // namespace softhca::rsocket
