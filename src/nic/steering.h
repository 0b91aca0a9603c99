// Steering: which raw packet queue pairs get an Ethernet frame, by the flow rules of the port.
//
// Rules of kind Normal are asked in the order of their priorities, those of one priority in the
// order in which they came. The first that matches takes the frame; if it says DontTrap, the
// search goes on. What nobody took goes to the default rules. A sniffer gets a copy of everything.
//
// The same rules are the forwarding table of the device's switch (is_destination), and say what the
// port has to let in (use).
//
// Spec        man ibv_create_flow
// Threads     owned by the device
// Invariants  a frame is given to a queue pair once, however many of its rules match
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "link/frame_port.h"
#include "wire/ethernet.h"
#include "wire/psn.h"

namespace softhca::nic {

enum class FlowKind : std::uint8_t {
  Normal = 0,
  AllDefault = 1,
  MulticastDefault = 2,
  Sniffer = 3
};

struct FlowRule {
  FlowKind kind = FlowKind::Normal;
  std::uint16_t priority{};  // 0 is asked first
  bool dont_trap{};          // what matches goes on to the next rule too
  bool drop{};               // what matches goes nowhere
  std::uint32_t tag{};       // told with the completion
  wire::FrameFields value;
  wire::FrameFields mask;
  wire::Qpn qpn;
};

class Steering {
 public:
  using Id = std::uint32_t;
  struct Target {
    wire::Qpn qpn;
    std::uint32_t tag{};
  };

  Id add(const FlowRule& rule);
  void remove(Id id);
  void remove_all(wire::Qpn qpn);
  bool has_rules(wire::Qpn qpn) const;
  std::size_t size() const { return rules_.size(); }

  // Who gets a frame, or of them the sniffers. What it gives is valid until the next call.
  enum class Who : std::uint8_t { All, Sniffers };
  const std::vector<Target>& targets_of(const wire::FrameFields& frame, Who who = Who::All);

  // Whether a rule names the frame's destination, the whole address.
  bool is_destination(const wire::FrameFields& frame) const;
  // What a port with this address has to receive for the rules.
  link::FrameUse use(const wire::MacAddress& own) const;

 private:
  struct Entry {
    Id id{};
    FlowRule rule;
  };
  void give_to(const FlowRule& rule);

  std::vector<Entry> rules_;  // in the order in which they are asked
  std::vector<Target> targets_;
  Id next_ = 1;
};

// Receive-side scaling: which of several receive queues gets a frame.
struct Spreading {
  std::vector<std::uint8_t> key;  // of the hash; 40 bytes
  std::uint64_t fields{};         // as ibv_rx_hash_fields
};

// The hash of the fields that were asked for and that the frame has; 0 if it has none of them.
std::uint32_t spread_hash(const Spreading& spreading, const wire::FrameFields& frame);

}  // namespace softhca::nic
