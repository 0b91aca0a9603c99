#include "sim/constants.h"

#include <array>

#include "base/assert.h"

namespace softhca::sim {
namespace {

constexpr std::size_t kCount = static_cast<std::size_t>(Constant::Count_);

// The CPU of Cai et al. has 3.4 GHz: 8 bits * 3.4e9 / 89e9 = 0.306 cycles a byte at the sender,
// / 42e9 = 0.648 at the receiver. The one of Kalia et al. has 2.0 GHz and takes 286 cycles for an
// unbatched request.
constexpr std::array<ConstantRow, kCount> kRows = {{
    {Constant::DmaRead, "64 B DMA read, host memory in cache", nanoseconds(557),
     "pcie-bench data, Neugebauer et al., SIGCOMM 2018: Xeon E5-2630v4, Gen3 x8, mean"},
    {Constant::DmaWrite, "DMA write, until it can be seen", picoseconds(278'500),
     "derived: half of that round trip"},
    {Constant::IotlbMiss, "what an IOTLB miss adds", nanoseconds(288),
     "pcie-bench data, same machine, mean"},
    {Constant::LinkByte, "a byte on PCIe", picoseconds(127),
     "PCI Express Base: 8 GT/s, 8 lanes, 128b/130b"},
    {Constant::TlpHeader, "header and framing of a TLP, 24 B", picoseconds(24 * 127),
     "PCI Express Base, 2.2.4 and 3.5"},
    {Constant::PeerThroughRoot, "a peer's request by way of the root complex", picoseconds(278'500),
     "derived: the way to host memory, once more"},
    {Constant::CableDelay, "cable and one cut-through switch", nanoseconds(500), "assumed"},
    {Constant::CableByte, "a byte on Ethernet", picoseconds(80), "IEEE 802.3: 100 Gb/s"},
    {Constant::PostRequest, "CPU: posting one request", nanoseconds(143),
     "Kalia et al., ATC 2016, 4.2: 7.0 M/s a core of 2.0 GHz, unbatched"},
    {Constant::PollCompletion, "CPU: taking one completion", nanoseconds(37),
     "Kalia et al., ATC 2016, 4.2: 73 cycles for each batched request, taken as a bound"},
    {Constant::SystemCall, "an empty system call", nanoseconds(129),
     "measured 2026-11-29: 2-vCPU guest, Sapphire Rapids class, Linux 6.18"},
    {Constant::WakeAfterShortSleep, "waking one who slept 100 us", microseconds(30),
     "measured, same machine: futex, until it runs"},
    {Constant::WakeAfterLongSleep, "waking one who slept 2 ms", microseconds(38),
     "measured, same machine"},
    {Constant::Waking, "CPU: what the waker pays", microseconds(13), "measured, same machine"},
    {Constant::SocketSendByte, "CPU: a byte through a sending socket", picoseconds(90),
     "Cai et al., SIGCOMM 2021, 3.4: 89 Gb/s a core of 3.4 GHz"},
    {Constant::SocketReceiveByte, "CPU: a byte through a receiving socket", picoseconds(190),
     "Cai et al., SIGCOMM 2021, 3.1: 42 Gb/s a core, half of it the copy"},
    {Constant::RegisterFixed, "CPU: registering, for each region", microseconds(16),
     "UCX's planning constant"},
    {Constant::RegisterPage, "CPU: registering a page that is there", nanoseconds(400),
     "Mooncake pull request 855: 500 GB, one thread"},
    {Constant::TouchPage, "CPU: first touch of a page", nanoseconds(310),
     "Mooncake issue 848: what untouched pages add"},
}};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kCount; ++i)
    if (static_cast<std::size_t>(kRows[i].constant) != i) return false;
  return true;
}
static_assert(is_in_order());

}  // namespace

std::span<const ConstantRow> constants() { return kRows; }

Duration cost_of(Constant constant) {
  const auto row = static_cast<std::size_t>(constant);
  ASSERT(row < kCount);
  return kRows[row].cost;
}

}  // namespace softhca::sim
