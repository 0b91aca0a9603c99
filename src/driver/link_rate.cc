#include "driver/link_rate.h"

#include <fmt/format.h>

#include <algorithm>

namespace softhca::driver {
namespace {

constexpr LinkRate kLinkRates[] = {
    {0, 1, 1},        {10'000, 1, 8},   {20'000, 2, 2},   {25'000, 1, 32},   {40'000, 2, 8},
    {50'000, 16, 32}, {100'000, 2, 32}, {200'000, 2, 64}, {400'000, 2, 128}, {800'000, 2, 256},
};

struct LaneSpeed {
  std::uint16_t code;
  std::uint32_t tenths;  // of a Gb/s
  const char* name;
};
constexpr LaneSpeed kLaneSpeeds[] = {{1, 25, ""},        {2, 50, " DDR"},   {8, 100, " FDR10"},
                                     {32, 250, " EDR"},  {64, 500, " HDR"}, {128, 1000, " NDR"},
                                     {256, 2000, " XDR"}};

std::uint32_t lanes(std::uint8_t width) { return width == 16 ? 2 : width == 2 ? 4 : 1; }

}  // namespace

const LinkRate& link_rate(std::uint64_t mbps) {
  const auto* const above = std::ranges::upper_bound(kLinkRates, mbps, {}, &LinkRate::mbps);
  return *(above - 1);
}

std::string link_rate_text(const LinkRate& rate) {
  const LaneSpeed& lane = *std::ranges::find(kLaneSpeeds, rate.speed, &LaneSpeed::code);
  const std::uint32_t tenths = lane.tenths * lanes(rate.width);
  return fmt::format("{}{} Gb/sec ({}X{})", tenths / 10, tenths % 10 != 0 ? ".5" : "",
                     lanes(rate.width), lane.name);
}

}  // namespace softhca::driver
