#include "os/environment.h"

#include <strings.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace softhca::os {

std::optional<std::string> env_text(const char* name) {
  const char* const value = ::secure_getenv(name);  // a program with set-user-ID hears nobody
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<bool> env_flag(const char* name) {
  const std::optional<std::string> text = env_text(name);
  if (!text) return std::nullopt;
  for (const char* yes : {"1", "yes", "true", "on"})
    if (strcasecmp(text->c_str(), yes) == 0) return true;
  for (const char* no : {"0", "no", "false", "off"})
    if (strcasecmp(text->c_str(), no) == 0) return false;
  return std::nullopt;
}

std::optional<std::uint64_t> env_number(const char* name) {
  const std::optional<std::string> text = env_text(name);
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    digits.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace softhca::os
