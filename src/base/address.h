// Addresses: one type per address space, so that a mistaken one does not compile.
//
// An RDMA transfer passes five address spaces; most bugs of other stacks mixed two of them.
//
//   VirtAddr   what the program holds; the MMU of its CPU translates it
//   PhysAddr   a byte of RAM: frame number times 4096 plus offset
//   BusAddr    what the device puts on PCIe (an IOVA); the IOMMU translates it
//   WireAddr   the address in a RETH, chosen by the peer; the key table translates it
//
// Adding a length to an address is done in base/range.h and nowhere else.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>

namespace softhca {

template <class Space>
struct Address {
  std::uint64_t value{};
  friend constexpr auto operator<=>(Address, Address) = default;
};

using VirtAddr = Address<struct VirtSpace>;
using PhysAddr = Address<struct PhysSpace>;
using BusAddr = Address<struct BusSpace>;
using WireAddr = Address<struct WireSpace>;

inline constexpr std::uint64_t kPage4K = std::uint64_t{1} << 12;
inline constexpr std::uint64_t kPage2M = std::uint64_t{1} << 21;
inline constexpr std::uint64_t kPage1G = std::uint64_t{1} << 30;

}  // namespace softhca
