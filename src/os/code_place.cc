#include "os/code_place.h"

#include <dlfcn.h>

#include <array>
#include <charconv>
#include <string_view>

namespace softhca::os {
namespace {

std::string hex(std::uint64_t number) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

}  // namespace

std::string code_place(std::uint64_t address) {
  Dl_info found{};
  if (::dladdr(reinterpret_cast<const void*>(address), &found) == 0 || found.dli_fname == nullptr)
    return hex(address);
  std::string_view file = found.dli_fname;
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos)
    file.remove_prefix(slash + 1);
  const auto offset_from = [&](const void* start) {
    return "+" + hex(address - reinterpret_cast<std::uintptr_t>(start));
  };
  if (found.dli_sname == nullptr) return std::string(file) + offset_from(found.dli_fbase);
  return std::string(file) + "(" + found.dli_sname + offset_from(found.dli_saddr) + ")";
}

}  // namespace softhca::os
