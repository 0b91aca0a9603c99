#include "pcie/config_space.h"

#include <bit>

#include "base/assert.h"

namespace softhca::pcie {
namespace {

constexpr std::uint32_t kBarMemory64 = 2u << 1;
constexpr std::uint32_t kBarPrefetchable = 1u << 3;
constexpr std::uint32_t kBarFlags = 0xf;
constexpr std::uint32_t kCapabilityList = 1u << 20;  // in the status half of the command register
constexpr std::uint32_t kExpressId = 0x10;
constexpr std::uint32_t kMsixId = 0x11;
constexpr unsigned kPayloadShift = 5;
constexpr unsigned kReadRequestShift = 12;
constexpr std::uint32_t kSizeMask = 7;
constexpr std::uint32_t kMsixEnable = 1u << 31;
constexpr std::uint32_t kMsixAllMasked = 1u << 30;

// Sizes are encoded as 0 for 128, 1 for 256, ... 5 for 4096.
std::uint32_t size_code(std::uint32_t bytes) {
  ASSERT(std::has_single_bit(bytes) && bytes >= 128 && bytes <= 4096);
  return static_cast<std::uint32_t>(std::countr_zero(bytes)) - 7;
}
std::uint32_t size_of_code(std::uint32_t code) { return 128u << (code & kSizeMask); }

std::size_t bar_register(std::size_t bar) { return config::kBar0 / 4u + 2 * bar; }

}  // namespace

ConfigSpace::ConfigSpace(const FunctionShape& shape, RequesterId id, trace::Tracer* tracer)
    : id_(id), tracer_(tracer) {
  registers_[config::kIdentity / 4] = std::uint32_t{shape.device} << 16 | shape.vendor;
  registers_[config::kClass / 4] = shape.class_code << 8;
  writable_[config::kCommand / 4] = kMemorySpace | kBusMaster | kIntxDisable;
  for (std::size_t i = 0; i < kBars; ++i) {
    const std::uint64_t bytes = shape.bars[i].bytes;
    bar_bytes_[i] = bytes;
    if (bytes == 0) continue;
    ASSERT(std::has_single_bit(bytes) && bytes >= kPage4K);
    registers_[bar_register(i)] =
        kBarMemory64 | (shape.bars[i].prefetchable ? kBarPrefetchable : 0);
    writable_[bar_register(i)] = static_cast<std::uint32_t>(~(bytes - 1)) & ~kBarFlags;
    writable_[bar_register(i) + 1] = static_cast<std::uint32_t>(~(bytes - 1) >> 32);
  }
  add_capabilities(shape);
}

void ConfigSpace::add_capabilities(const FunctionShape& shape) {
  registers_[config::kCommand / 4] |= kCapabilityList;
  registers_[config::kCapabilities / 4] = config::kExpress;
  const std::uint32_t next = shape.vectors != 0 ? config::kMsix : 0;
  registers_[config::kExpress / 4] = 2u << 16 | next << 8 | kExpressId;  // version 2
  registers_[config::kExpress / 4 + 1] = size_code(shape.largest_payload);
  registers_[config::kDeviceControl / 4] =
      size_code(128) << kPayloadShift | size_code(512) << kReadRequestShift;  // after reset
  writable_[config::kDeviceControl / 4] = kSizeMask << kPayloadShift | kSizeMask
                                                                           << kReadRequestShift;
  if (shape.vectors == 0) return;
  ASSERT(shape.vectors <= 2048);
  registers_[config::kMsix / 4] = (shape.vectors - 1u) << 16 | kMsixId;
  writable_[config::kMsix / 4] = kMsixEnable | kMsixAllMasked;
}

void ConfigSpace::write(std::uint16_t offset, std::uint32_t value, Time now) {
  ASSERT(offset % 4 == 0 && offset / 4u < kRegisters);
  std::uint32_t& own = registers_[offset / 4u];
  const std::uint32_t mask = writable_[offset / 4u];
  own = (own & ~mask) | (value & mask);
  if (tracer_ != nullptr)
    tracer_->emit(trace::EventKind::ConfigWrite, now, id_.value, offset, value);
}

void ConfigSpace::set_command_bit(std::uint16_t bit, bool on, Time now) {
  write_command(static_cast<std::uint16_t>(on ? command() | bit : command() & ~bit), now);
}

void ConfigSpace::place_bar(std::size_t bar, PhysAddr at, Time now) {
  ASSERT(bar < kBars && bar_bytes_[bar] != 0 && offset_in(at, bar_bytes_[bar]) == 0);
  const auto offset = static_cast<std::uint16_t>(config::kBar0 + 8 * bar);
  write(offset, static_cast<std::uint32_t>(at.value), now);
  write(static_cast<std::uint16_t>(offset + 4), static_cast<std::uint32_t>(at.value >> 32), now);
}

std::optional<Range<PhysSpace>> ConfigSpace::bar(std::size_t bar) const {
  if (bar >= kBars || bar_bytes_[bar] == 0 || !memory_space()) return std::nullopt;
  const std::uint32_t low = registers_[bar_register(bar)] & ~kBarFlags;
  const std::uint64_t high = registers_[bar_register(bar) + 1];
  return Range<PhysSpace>{{high << 32 | low}, bar_bytes_[bar]};
}

LinkLimits ConfigSpace::limits(std::uint32_t rcb) const {
  const std::uint32_t control = read(config::kDeviceControl);
  return {.mps = size_of_code(control >> kPayloadShift),
          .mrrs = size_of_code(control >> kReadRequestShift),
          .rcb = rcb};
}

void ConfigSpace::set_sizes(std::uint32_t payload, std::uint32_t read_request, Time now) {
  ASSERT(size_code(payload) <= (read(config::kExpress + 4) & kSizeMask));
  write(config::kDeviceControl,
        size_code(payload) << kPayloadShift | size_code(read_request) << kReadRequestShift, now);
}

void ConfigSpace::enable_msix(bool on, bool all_masked, Time now) {
  ASSERT(writable_[config::kMsix / 4] != 0);
  write(config::kMsix, (on ? kMsixEnable : 0) | (all_masked ? kMsixAllMasked : 0), now);
}

}  // namespace softhca::pcie
