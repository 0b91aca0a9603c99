// Plan: a list of faults that shall happen to a device, as a value.
//
// A fault has a kind, conditions that pick what fits it, a turn (which of those that fit it hits),
// and what it does. What a kind does not use is left as it is.
//
// See also  faults/plan_text.h, which reads one; docs/faults.md
#pragma once
#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "wire/psn.h"

namespace softhca::faults {

inline constexpr std::size_t kFaultsAtMost = 64;

enum class What : std::uint8_t {
  // Packets, on the cable.
  Drop,
  Duplicate,
  Delay,
  Reorder,
  Corrupt,
  Truncate,
  Sever,
  // Work requests, when the device takes them off the send queue.
  FailWork,
  // Requests of a peer.
  StallResponder,
  ForceRnr,
  // Accesses to memory, on the bus.
  SlowDma,
  FailTranslation,
  Count_,
};
inline constexpr std::size_t kWhats = static_cast<std::size_t>(What::Count_);

std::string_view what_name(What what);  // as in a plan: "fail_work"

constexpr bool is_of_packets(What what) { return what <= What::Sever; }
constexpr bool is_of_accesses(What what) { return what >= What::SlowDma; }

// Of a packet or an access, as the device sees it.
enum class Side : std::uint8_t { Both, Out, In };  // send or write; receive or read

struct PsnRange {  // both included; may pass 0
  wire::Psn first;
  wire::Psn last;
};

struct Fault {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  What what{};
  std::uint32_t line{};  // where it begins in the plan; 0: it was not read from one
  std::uint64_t seed{};  // of its own stream

  // What fits it.
  Side side = Side::Both;
  std::optional<wire::Qpn> qpn{};  // of the device's own queue pair
  std::uint32_t nth_qp{};          // counted from 1 as they are created; 0: any
  // BTH opcodes; of work, as ibv_wr_opcode.
  std::bitset<256> opcodes = std::bitset<256>().set();
  std::optional<PsnRange> psn{};
  std::optional<std::uint64_t> wr_id{};
  std::uint32_t region{};  // counted from 1 in the order of registration; 0: any access

  // Its turn, counted in what fits: from the nth on; every so many; so many in 2^32, by chance.
  std::uint64_t nth = 1;
  std::uint64_t every = 1;
  std::optional<std::uint32_t> chance{};
  std::uint64_t count = kUnlimited;  // hits at most; of Sever, peers

  // What it does.
  Duration time{};             // how late, or for how long; 0 of the latter: for ever
  std::uint32_t bytes{};       // Truncate: what is left; 0: half
  std::uint32_t passed_by{1};  // Reorder: by how many packets of the same queue pair
  std::uint8_t status{};       // FailWork: as ibv_wc_status
};

struct Plan {
  std::string name;  // of its file, without folders
  std::vector<Fault> faults;
};

}  // namespace softhca::faults
