#include "wire/crc32.h"

#include <libdeflate.h>

#include <array>
#include <atomic>

namespace softhca::wire {
namespace {

constinit std::atomic<Crc32Function> g_faster{nullptr};

std::uint32_t by_libdeflate(std::uint32_t so_far, ConstBytes bytes) {
  return libdeflate_crc32(so_far, bytes.data(), bytes.size());
}

std::uint32_t by(Crc32Function function, std::uint32_t so_far, ConstBytes bytes) {
  return function(so_far, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace

std::uint32_t crc32(std::uint32_t so_far, ConstBytes bytes) {
  const Crc32Function faster = g_faster.load(std::memory_order_relaxed);
  return faster != nullptr ? by(faster, so_far, bytes) : by_libdeflate(so_far, bytes);
}

bool use_crc32(Crc32Function faster) {
  std::array<std::byte, 5000> sample;
  for (std::size_t i = 0; i < sample.size(); ++i) sample[i] = static_cast<std::byte>(i * i >> 3);
  // Around the sizes at which implementations change their way.
  for (const std::size_t size : {0u, 1u, 12u, 63u, 64u, 255u, 256u, 1040u, 4112u, 5000u}) {
    const ConstBytes bytes = ConstBytes(sample).first(size);
    if (faster != nullptr && by(faster, 0x1234'5678, bytes) != by_libdeflate(0x1234'5678, bytes))
      return false;
  }
  g_faster.store(faster, std::memory_order_relaxed);
  return true;
}

}  // namespace softhca::wire
