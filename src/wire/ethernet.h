// Ethernet: what a frame says in front of its payload, as far as flow rules and hashes look at it.
//
// RoCEv2 packets do not pass here: they travel as UDP datagrams. These are the frames of raw packet
// queue pairs, which programs write and read whole.
//
// Spec        IEEE 802.3 and 802.1Q; RFC 791, 8200, 768, 9293
// Invariants  every byte of a member that the frame does not have is 0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/bytes.h"

namespace softhca::wire {

inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kVlanTagBytes = 4;

using MacAddress = std::array<std::uint8_t, 6>;

// Which headers a frame has.
enum class FrameLayer : std::uint8_t { Vlan = 1, Ipv4 = 2, Ipv6 = 4, Tcp = 8, Udp = 16 };

// All bytes as on the wire. Also the form of a rule: values, and a mask of the bits that count.
struct FrameFields {
  std::uint8_t layers{};  // FrameLayer
  std::uint8_t destination[6]{};
  std::uint8_t source[6]{};
  std::uint8_t ether_type[2]{};  // behind the VLAN tag, if there is one
  std::uint8_t vlan_tag[2]{};
  std::uint8_t ipv4_source[4]{};
  std::uint8_t ipv4_destination[4]{};
  std::uint8_t ipv6_source[16]{};
  std::uint8_t ipv6_destination[16]{};
  std::uint8_t flow_label[4]{};   // the lower 20 bits
  std::uint8_t protocol{};        // or next header
  std::uint8_t traffic_class{};   // or type of service
  std::uint8_t hop_limit{};       // or time to live
  std::uint8_t ipv4_flags{};      // 1: more fragments follow, 2: do not fragment
  std::uint8_t source_port[2]{};  // TCP and UDP, first fragments only
  std::uint8_t destination_port[2]{};

  bool has(FrameLayer layer) const { return (layers & static_cast<std::uint8_t>(layer)) != 0; }
  bool is_multicast() const { return (destination[0] & 1) != 0; }
  void add(FrameLayer layer) { layers |= static_cast<std::uint8_t>(layer); }
};
static_assert(std::has_unique_object_representations_v<FrameFields>);

// What is cut short says nothing of the header that it is cut in. A frame of less than an Ethernet
// header says nothing at all.
FrameFields fields_of(ConstBytes frame);

// Whether every bit of `mask` that is set is as in `value`.
bool matches(const FrameFields& fields, const FrameFields& value, const FrameFields& mask);

// The Toeplitz hash of receive-side scaling. REQUIRES: a key of at least input.size() + 4 bytes.
// Spec  Microsoft, "Receive Side Scaling: RSS Hashing Functions" (2007), where its vectors are
std::uint32_t toeplitz_hash(std::span<const std::uint8_t> key, std::span<const std::uint8_t> input);

}  // namespace softhca::wire
