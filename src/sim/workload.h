// Workload: random work on a connection, and the oracle that says whether it came out right.
//
// Every operation has buffers of its own: a source with bytes that nothing else has, a target that
// must hold exactly these in the end, and a margin around both that must not change. So whatever
// the order in which the network delivers, the outcome is known.
// An atomic has a word of its own, which shows how often it was executed. Half of the ends open
// their memory by a window, of either type.
//
// Oracle  each work request completes exactly once, in the order posted, with success; receives
//         likewise, with the right length and immediate data; memory equals the model.
//         Where one end's program has died: what the other one posted completes exactly once and in
//         order, first with success, then once with RetriesExceeded, then flushed; its memory has
//         the operations in their order, all of the first ones, a beginning of the next, and
//         nothing of the rest
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/world.h"

namespace softhca::sim {

struct WorkloadSettings {
  std::uint32_t operations = 40;  // in each direction
  std::uint32_t longest_bytes = 24 * 1024;
  std::uint64_t arena_bytes = std::uint64_t{5} << 18;  // of each end; fewer operations if too few
  std::uint64_t page_bytes = kPage4K;  // of these, where the kernel has such frames; else 4 KiB
};

class Workload {
 public:
  // Both directions of `connection` are used; 0 is its end a, 1 its end b.
  // REQUIRES: `world` outlives this, the connection as long as its programs live.
  Workload(World& world, const Connection& connection, std::uint64_t seed,
           const WorkloadSettings& settings = {});

  // Posts what fits and takes completions. Call after each step of the world.
  void drive();
  // Has everything come that will, or is something wrong?
  bool finished() const;
  // The program of this end has died: it posts and takes nothing any more.
  void lose(std::size_t end) { ends_[end].lost = true; }

  // What is wrong so far; "" if nothing. After finished(): compares all memory.
  std::string verdict();
  // Deregisters the memory of an end. REQUIRES: it was not lost.
  void release(std::size_t end);

  bool is_lost(std::size_t end) const { return ends_[end].lost; }
  const Connection::End& end(std::size_t end) const { return ends_[end].queues; }
  // The registered memory of an end.
  Range<VirtSpace> arena(std::size_t end) const {
    return {ends_[end].start, ends_[end].memory.size()};
  }
  std::uint64_t page_bytes(std::size_t end) const { return ends_[end].page_bytes; }
  // Of what the end posted, since its peer died.
  std::size_t failed(std::size_t end) const {
    return directions_[end].completed - directions_[end].succeeded;
  }

 private:
  enum class Kind : std::uint8_t { Send, SendImm, Write, WriteImm, Read, CompareSwap, FetchAdd };
  struct Operation {
    Kind kind{};
    std::uint32_t bytes{};
    std::uint64_t source{};  // offsets in the arena of the side that holds it; an atomic's word
    std::uint64_t target{};
    std::uint32_t immediate{};
    std::uint64_t swap_or_add{};
    std::uint64_t compare{};
    bool received = false;
  };
  // What one end posts to the other.
  struct Direction {
    std::vector<Operation> operations;
    std::size_t posted = 0;
    std::size_t completed = 0;
    std::size_t succeeded = 0;         // always the first ones
    std::deque<std::size_t> receives;  // operations whose receive is posted, in order
    std::size_t receive_next = 0;      // next operation that needs a receive
    std::size_t receives_done = 0;
    std::size_t receives_needed = 0;
  };
  struct End {
    Connection::End queues;
    VirtAddr start;
    std::uint64_t page_bytes = kPage4K;
    wire::Key key;
    std::optional<wire::Key> window;  // through which the peer reaches its memory
    wire::Key remote_key() const { return window.value_or(key); }
    std::vector<std::byte> memory;  // what it holds when no operation has come to anything
    std::uint64_t used = 0;
    bool lost = false;
  };

  static bool is_atomic(Kind kind) { return kind >= Kind::CompareSwap; }
  static bool brings_bytes(Kind kind) { return kind == Kind::Read || is_atomic(kind); }
  static bool needs_receive(Kind kind) {
    return kind == Kind::Send || kind == Kind::SendImm || kind == Kind::WriteImm;
  }
  void set_up(End& end, const WorkloadSettings& settings);
  void open_window(End& end, nic::WindowType type);
  void plan(std::size_t from, const WorkloadSettings& settings);
  void plan_atomic(Operation& op, End& near, End& far);
  static std::uint64_t take(End& end, std::uint32_t bytes, std::uint64_t alignment = 1);
  void post_receives(std::size_t from);
  void post_sends(std::size_t from);
  void take_completions(std::size_t end);
  void on_send_done(std::size_t from, const driver::Completion& completion);
  void on_receive_done(std::size_t from, const driver::Completion& completion);
  void apply(std::vector<std::byte>& expected, const std::vector<std::byte>& memory,
             std::size_t from, bool reads);
  bool apply_atomic(std::vector<std::byte>& expected, const std::vector<std::byte>& memory,
                    const Operation& op);
  void complain(const std::string& what);

  World& world_;
  Prng prng_;
  End ends_[2];
  Direction directions_[2];  // by the end that posts
  std::string wrong_;
};

}  // namespace softhca::sim
