// Transfer: two modelled servers, a program on each, and one transfer between the two, stage by
// stage, so that it can be told, and something broken, in between.
//
// Each stage keeps what was heard while it lasted. A stage that fails keeps its reason; those
// behind it are then not reached.
//
// See also  sim/journey.h (which tells it), sim/wrong.h (which breaks it)
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/journey.h"
#include "sim/pattern.h"
#include "sim/witness.h"
#include "sim/world.h"

namespace softhca::sim {

// What the kernel tried to do with a page that a device has.
struct MoveAttempts {
  host::MoveAnswer migrate{};
  host::MoveAnswer swap_out{};
  host::Compaction compaction;
};

// One end: a machine, the program on it, and the program's buffer.
struct TransferEnd {
  Host* host{};
  host::Pid pid;
  VirtAddr start;
  wire::Key key;
  const Connection::End* connection{};
  std::vector<std::uint64_t> bus_pages;  // where its 4 KiB pages lie for the device, in order
  trace::Reason refused;                 // why it could not be registered
  trace::Reason cause;                   // the first thing that this side refused, and why
  MoveAttempts attempts;
  Pattern content;  // what the program put there last
  // What was heard at each stage, on this host.
  Heard allocated, touched, registered, moved;
  Host::Counts before{}, counted{};  // the posting; and from there to the end

  std::uint16_t number() const { return host->number(); }
};

// How many pages a buffer touches.
std::uint64_t pages_of(const JourneySettings& settings);

class Transfer {
 public:
  // `tweak` may change what both machines are.
  using Tweak = void (*)(HostSettings&);
  explicit Transfer(const JourneySettings& settings, Tweak tweak = nullptr);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // The stages, in this order.
  void allocate(TransferEnd& end);
  bool touch(TransferEnd& end);  // false: there are no frames for it
  // False: refused. In the domain of the end's queue pair if `pd` is 0.
  bool register_memory(TransferEnd& end, driver::AccessFlags access, std::uint32_t pd = 0);
  void try_to_move(TransferEnd& end);
  void connect_ends();
  void post();
  // Until the completion is there, or nothing is left to happen.
  void finish();

  // All up to the posting, nothing broken, with these rights; and all of them.
  bool prepare(driver::AccessFlags client_access, driver::AccessFlags server_access);
  bool prepare() { return prepare(needed_rights(client), needed_rights(server)); }
  void post_and_finish();
  // What the operation needs at that end, and no more.
  driver::AccessFlags needed_rights(const TransferEnd& end) const;

  // The target's program overwrites its buffer, so that what comes can be told from what came.
  void clear_target();

  // The request as it will be posted; whoever breaks things changes it before.
  struct Request {
    std::uint64_t remote_address{};
    wire::Key rkey;
    wire::Key lkey;
    std::uint64_t bytes{};
    Operation operation{};
  } request;

  // What came of it.
  bool is_posted() const { return posted_; }
  const std::optional<driver::Completion>& completion() const { return completion_; }
  const Heard& heard() const { return heard_; }  // from the posting on, both hosts
  Time posted_at() const { return posted_at_; }
  Duration took() const { return took_; }
  // Of both hosts' processors for one transfer that takes so long. Who waits for a completion
  // polls.
  Duration cpu_busy(Duration latency) const;
  // The bytes that should have moved are where they should be; nothing else of the buffers changed.
  bool moved_all() const;
  // The target's program finds its buffer as it left it.
  bool is_untouched() const;
  // Of what it finds there now, the first bytes; none if it has given the buffer back.
  std::vector<std::byte> first_arrived() const;
  // The buffer as a whole is that pattern.
  bool holds(const TransferEnd& end, const Pattern& pattern) const;
  // Its program writes the pattern. False: there are no frames for it.
  bool write(TransferEnd& end, const Pattern& pattern);
  // Whose bytes move, and to whom.
  const TransferEnd& source() const { return is_read() ? server : client; }
  const TransferEnd& target() const { return is_read() ? client : server; }
  // From the posting to the end.
  static std::uint64_t counted(const TransferEnd& end, trace::Counter counter) {
    return end.counted[static_cast<std::size_t>(counter)];
  }

  // Whether an access of the device was to the registered buffer, not to a ring.
  static bool is_payload(const TransferEnd& end, BusAddr at);
  // The first accesses of a kind (DmaRead, DmaWrite) that were.
  std::vector<trace::Event> payload_accesses(const TransferEnd& end, trace::EventKind kind) const;

  // Something to be done when that many packets have reached the server; it hears how many have.
  void after_packets(std::uint64_t packets, std::function<void(std::uint64_t)> what);

  const JourneySettings& settings() const { return settings_; }
  World& world() { return *world_; }
  const World& world() const { return *world_; }
  TransferEnd client;
  TransferEnd server;
  // Programs that have nothing to do with it, with memory of their own.
  struct Neighbour {
    host::Pid pid;
    VirtAddr start;
    std::uint64_t bytes{};
    std::byte filled_with{};
  };
  std::vector<Neighbour> neighbours;  // at the server

 private:
  void start_neighbours();
  bool is_done();
  bool is_read() const { return settings_.operation == Operation::Read; }

  JourneySettings settings_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Witness> witness_;
  Connection connection_;
  Prng prng_;
  Heard heard_;
  Time posted_at_;
  Duration took_;
  bool posted_ = false;
  std::optional<driver::Completion> completion_;
  std::uint64_t after_packets_ = 0;
  std::function<void(std::uint64_t)> then_;
};

}  // namespace softhca::sim
