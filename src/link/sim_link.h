// SimNetwork: a simulated network; every host holds one end of it.
//
// Frames in flight are copies. The same seed and the same calls give the same deliveries. A frame
// for an address that nobody has is lost. Without reordering, what one host sends to another
// arrives in order.
//
// Between the hosts is a switch. Its port towards each host may be slow: frames then wait there in
// one queue, the longer the more of them are marked (RFC 3168: CE, if they may be), and are lost
// where it is full. Marks are given by chance, as by the switches of DCQCN (Zhu et al., SIGCOMM
// 2015, figure 5).
//
// Threads  one for the whole network
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/prng.h"
#include "link/link.h"

namespace softhca::link {

struct SwitchPort {
  std::int64_t ps_per_byte{};     // headers included; 0: as fast as anything, and all below is void
  std::int64_t queue_bytes{};     // that it holds; 0: no limit
  std::int64_t marks_from{};      // queued bytes from which frames may be marked (K_min) ...
  std::int64_t marks_all_at{};    // ... and from which all are (K_max); 0: none ever
  std::uint32_t marks_at_most{};  // parts in 1000 just below that (P_max)
};

struct SimCosts {
  Duration delay{};            // of every frame
  Duration delay_spread{};     // up to this much is added, at random
  std::int64_t ps_per_byte{};  // of the sender's wire, headers included; 0: no limit
  // Parts in 1000.
  std::uint32_t loss{};
  std::uint32_t duplication{};
  std::uint32_t reordering{};  // frames that may be overtaken
  std::uint32_t corruption{};  // frames that lose a bit
  SwitchPort port{};
};

struct SimStatistics {
  std::uint64_t sent{};
  std::uint64_t delivered{};
  std::uint64_t lost{};  // by chance, or because nobody has the address
  std::uint64_t duplicated{};
  std::uint64_t reordered{};
  std::uint64_t corrupted{};
  std::uint64_t marked{};
  std::uint64_t overflowed{};  // lost in the full queue of a port
};

class SimNetwork {
 public:
  SimNetwork(std::uint64_t seed, const SimCosts& costs);
  ~SimNetwork();

  // A new host with these addresses. The link lives as long as the network.
  Link& attach(std::span<const wire::Gid> addresses);

  // Whether a host receives what is sent to a multicast group.
  void set_joined(const Link& end, const wire::Gid& group, bool joined);

  // From now on; frames in flight keep their fate. To heal a network: no losses.
  void set_costs(const SimCosts& costs) { costs_ = costs; }
  // A host that is not connected neither sends nor receives; frames on their way to it are lost
  // when they arrive.
  void set_connected(const Link& end, bool connected);

  Time next_arrival() const;
  const SimStatistics& statistics() const { return statistics_; }
  // What waits in the port towards this host.
  std::int64_t queued_bytes(const wire::Gid& host, Time now) const;

 private:
  class End;
  End& end_of(const Link& end);
  void deliver(End& from, End& to, const Frame& frame);
  void carry(End& from, const Frame& frame, Time now);
  Time arrival_time(End& from, const End& to);
  void pass_port(End& to, Time now);

  Prng prng_;
  SimCosts costs_;
  SimStatistics statistics_;
  std::uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<End>> ends_;
};

}  // namespace softhca::link
