// Words: numbers as people read them, the same in every story and every table.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace softhca::trace {

// "1234567" as "1,234,567".
std::string grouped(std::uint64_t number);
// "65536" as "64 KiB"; numbers that are not whole get one decimal.
std::string bytes_text(std::uint64_t bytes);
// "1 page", "3 pages", "2 entries".
std::string counted(std::uint64_t number, std::string_view noun);
// "1 page is", "3 pages are": with the verb for one and for more.
std::string counted(std::uint64_t number, std::string_view noun, std::string_view one,
                    std::string_view more);
// "0x7f0000001000"
std::string hex(std::uint64_t number);
// "80 ps", "850 ns", "4.21 us", "1.50 ms"
std::string time_text(Duration time);

}  // namespace softhca::trace
