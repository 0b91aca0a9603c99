#include "trace/words.h"

#include <fmt/format.h>

#include <array>

namespace softhca::trace {

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                      "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  const std::uint64_t size = std::uint64_t{1} << (10 * unit);
  if (bytes % size == 0) return fmt::format("{} {}", bytes / size, kUnits[unit]);
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(size),
                     kUnits[unit]);
}

std::string counted(std::uint64_t number, std::string_view noun) {
  std::string text = grouped(number) + " ";
  if (number == 1) return text.append(noun);
  if (noun.ends_with("y")) return text.append(noun.substr(0, noun.size() - 1)).append("ies");
  return text.append(noun).append("s");
}

std::string counted(std::uint64_t number, std::string_view noun, std::string_view one,
                    std::string_view more) {
  return (counted(number, noun) + " ").append(number == 1 ? one : more);
}

std::string hex(std::uint64_t number) { return fmt::format("{:#x}", number); }

std::string time_text(Duration time) {
  const auto ps = static_cast<double>(time.ps);
  if (time < nanoseconds(1)) return fmt::format("{} ps", time.ps);
  if (time < microseconds(1)) return fmt::format("{:.0f} ns", ps / 1e3);
  if (time < milliseconds(1)) return fmt::format("{:.2f} us", ps / 1e6);
  return fmt::format("{:.2f} ms", ps / 1e9);
}

}  // namespace softhca::trace
