// Workload: random work on a connection, and the oracle that says whether it came out right.
//
// Every operation has buffers of its own: a source with bytes that nothing else has, a target that
// must hold exactly these in the end, and a margin around both that must not change. An atomic has
// a word of its own, which shows how often it was executed. So whatever
// the order in which the network delivers, the outcome is known.
//
// Oracle  each work request completes exactly once, in the order posted, with success; receives
//         likewise, with the right length and immediate data; memory equals the model
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/world.h"

namespace softhca::sim {

class Workload {
 public:
  // Both directions of `connection` are used. REQUIRES: both outlive this.
  Workload(World& world, const Connection& connection, std::uint64_t seed,
           std::uint32_t operations);

  // Posts what fits and takes completions. Call after each step of the world.
  void drive();
  bool finished() const;

  // What is wrong so far; "" if nothing. After finished(): compares all memory.
  std::string verdict();
  // Deregisters its memory.
  void release();

 private:
  enum class Kind : std::uint8_t { Send, SendImm, Write, WriteImm, Read, CompareSwap, FetchAdd };
  struct Operation {
    Kind kind{};
    std::uint32_t bytes{};
    std::uint64_t source{};  // offsets in the arena of the side that holds it
    std::uint64_t target{};
    std::uint32_t immediate{};
    std::uint64_t swap_or_add{};
    std::uint64_t compare{};
    bool done{};
  };
  // One direction: `from` posts, `to` is the peer.
  struct Direction {
    Connection::End from;
    Connection::End to;
    std::vector<Operation> operations;
    std::size_t posted = 0;
    std::size_t completed = 0;
    std::deque<std::size_t> receives;  // operations whose receive is posted, in order
    std::size_t receive_next = 0;      // next operation that needs a receive
    std::size_t receives_done = 0;
    std::size_t receives_needed = 0;
  };
  // The registered arena of one host, and what it must hold in the end.
  struct Arena {
    Host* host{};
    VirtAddr start;
    std::uint64_t bytes{};
    wire::Key key;
    std::vector<std::byte> model;
    std::uint64_t used = 0;
  };

  static bool is_atomic(Kind kind) { return kind >= Kind::CompareSwap; }
  static bool needs_receive(Kind kind) {
    return kind == Kind::Send || kind == Kind::SendImm || kind == Kind::WriteImm;
  }
  void plan(Direction& direction, std::uint32_t operations);
  void plan_atomic(Operation& op, Arena& near, Arena& far);
  std::uint64_t take(Arena& arena, std::uint32_t bytes, std::uint64_t alignment = 1);
  void post(Direction& direction);
  void take_completions(Connection::End& end);
  void on_send_done(Direction& direction, const driver::Completion& completion);
  void on_receive_done(Direction& direction, const driver::Completion& completion);
  Arena& arena_of(const Connection::End& end) {
    return end.host == arenas_[0].host ? arenas_[0] : arenas_[1];
  }
  void complain(const std::string& what);

  World& world_;
  Prng prng_;
  Arena arenas_[2];
  Direction directions_[2];
  std::string wrong_;
};

}  // namespace softhca::sim
