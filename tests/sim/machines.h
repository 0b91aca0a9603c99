// Machines: a world of two to eight hosts in which kernels and programs do at random what kernels
// and programs do, while their devices work; and the judgement whether everything held.
//
// Kernels move pages, swap them out, take them back and make huge frames; programs write, fork
// while their memory is pinned, end with everything open, are born and connect. Everything about a
// world follows from its seed.
//
// Oracle  what each connection's Workload says; the memory of every program, also of children and
//         of those without a connection, is what it wrote itself; in the end every frame, page
//         table, swap slot, pin, bus address, leaf, ring and key is free again
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/workload.h"
#include "sim/world.h"

namespace softhca::sim {

// That worlds saw what they were to see.
struct Sights {
  std::uint64_t retransmits{}, failed{}, within_one_host{};
  std::uint64_t moved{}, swapped{}, kept_by_pin{}, orphans{};
  std::uint64_t forks{}, child_writes{}, deaths{}, births{};
  Sights& operator+=(const Sights& other);
};

class Machines {
 public:
  explicit Machines(std::uint64_t seed);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  // From the first program to the last. What is wrong; "" if nothing.
  std::string run();
  Sights sights() const;
  World& world() { return *world_; }

 private:
  // A stretch of a program's memory that no device writes to, and what is in it.
  struct Memory {
    VirtAddr start;
    std::vector<std::byte> bytes;
    std::uint64_t page_bytes = kPage4K;
  };
  struct Program {
    enum class State : std::uint8_t { Alive, Dead, Gone };  // Dead: its device is still open
    std::size_t index{};
    Host* host{};
    host::Pid pid;
    bool is_child = false;
    State state = State::Alive;
    Time closes_at{};  // Dead only
    std::deque<Memory> own;
    // A registration of own memory, for which nobody asks: more pins, leaves and keys.
    std::uint32_t pd = 0;  // 0: there is none
    wire::Key key;

    bool alive() const { return state == State::Alive; }
  };
  // What a host had before anybody asked it for anything.
  struct Start {
    std::uint64_t leaves{}, bus_bytes{}, ring_bytes{};
    std::uint32_t tables{};
  };
  // A connection, its workload, and whose its ends are.
  struct Line {
    std::unique_ptr<Workload> work;
    Program* programs[2]{};
    bool open = true;
  };

  static WorldSettings settings_for(Prng& prng);
  Program& start_program(Host& host, host::Pid pid);
  void join(Program& a, Program& b);
  Program* some_program(bool also_children);
  VirtAddr somewhere(const Program& program);

  bool on_step();
  void act();
  void store(Program& program);
  void check(Program& program, const Memory& memory);
  void check_all(Program& program);
  void move_page(Program& program);
  void take_memory(Host& host);
  void fork(Program& parent);
  void pin_or_unpin(Program& program);
  void unpin(Program& program);
  void map_anew(Program& program);
  void be_born();
  void die(Program& program);
  void close_device(Program& program);
  void retire(Line& line);
  void end_all();
  void check_balance(std::size_t host);
  void complain(std::string_view what);

  Prng prng_;
  std::unique_ptr<World> world_;
  link::SimCosts storm_, calm_;
  std::vector<Start> starts_;     // by host
  std::deque<Program> programs_;  // never moved: lines point at them
  std::deque<Line> lines_;
  std::uint64_t deaths_left_, births_left_, forks_left_;
  std::string wrong_;
  Sights sights_;
};

}  // namespace softhca::sim
