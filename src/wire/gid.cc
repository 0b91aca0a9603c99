#include "wire/gid.h"

#include <charconv>

namespace softhca::wire {
namespace {

using V4 = std::array<std::uint8_t, 4>;
using Groups = std::array<std::uint16_t, 8>;

// Takes one number off the front: at most `digits_max` digits, none but the base's.
std::optional<unsigned> take_number(std::string_view& text, int base, std::size_t digits_max) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || digits > digits_max) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

// "192.0.2.1" and nothing around it. No leading zeros: some readers take them for octal.
std::optional<V4> parse_v4(std::string_view text) {
  V4 v4{};
  for (std::size_t i = 0; i < v4.size(); ++i) {
    if (i > 0) {
      if (!text.starts_with('.')) return std::nullopt;
      text.remove_prefix(1);
    }
    const bool leading_zero = text.size() > 1 && text[0] == '0' && text[1] != '.';
    const auto number = take_number(text, 10, 3);
    if (leading_zero || !number || *number > 0xff) return std::nullopt;
    v4[i] = static_cast<std::uint8_t>(*number);
  }
  return text.empty() ? std::optional(v4) : std::nullopt;
}

// One side of a "::", or the whole address where there is none.
struct Run {
  Groups groups{};
  std::size_t count = 0;
};

// Appends "a:b:c"; where `may_end_in_v4`, the last two groups may be written "192.0.2.1".
bool append_groups(std::string_view text, bool may_end_in_v4, Run& run) {
  if (text.empty()) return true;
  for (;;) {
    if (run.count == run.groups.size()) return false;
    if (may_end_in_v4 && text.find(':') == text.npos) {
      if (const auto v4 = parse_v4(text)) {
        if (run.count + 2 > run.groups.size()) return false;
        run.groups[run.count++] = static_cast<std::uint16_t>((*v4)[0] << 8 | (*v4)[1]);
        run.groups[run.count++] = static_cast<std::uint16_t>((*v4)[2] << 8 | (*v4)[3]);
        return true;
      }
    }
    const auto group = take_number(text, 16, 4);
    if (!group) return false;
    run.groups[run.count++] = static_cast<std::uint16_t>(*group);
    if (text.empty()) return true;
    if (!text.starts_with(':')) return false;
    text.remove_prefix(1);
  }
}

Gid of_groups(const Groups& groups) {
  Gid gid;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    gid.bytes[2 * i] = static_cast<std::uint8_t>(groups[i] >> 8);
    gid.bytes[2 * i + 1] = static_cast<std::uint8_t>(groups[i]);
  }
  return gid;
}

std::optional<Gid> parse_v6(std::string_view text) {
  const std::size_t gap = text.find("::");
  Run front;
  if (gap == text.npos) {
    if (!append_groups(text, true, front) || front.count != 8) return std::nullopt;
    return of_groups(front.groups);
  }
  Run back;
  if (!append_groups(text.substr(0, gap), false, front)) return std::nullopt;
  if (!append_groups(text.substr(gap + 2), true, back)) return std::nullopt;
  if (front.count + back.count > 7) return std::nullopt;  // "::" stands for a group at least
  for (std::size_t i = 0; i < back.count; ++i) front.groups[8 - back.count + i] = back.groups[i];
  return of_groups(front.groups);
}

template <class Number>
void append_number(std::string& text, Number value, int base) {
  std::array<char, 8> digits;
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, base);
  text.append(digits.data(), end);
}

std::string v4_text(const Gid& gid) {
  std::string text;
  for (std::size_t i = 12; i < 16; ++i) {
    if (i > 12) text += '.';
    append_number(text, gid.bytes[i], 10);
  }
  return text;
}

struct Gap {
  std::size_t first = 8;
  std::size_t length = 0;
};

// What "::" stands for: the longest run of zero groups, the first of equals, never a single group.
Gap longest_gap(const Groups& groups) {
  Gap best;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::size_t length = 0;
    while (i + length < groups.size() && groups[i + length] == 0) ++length;
    if (length >= 2 && length > best.length) best = {i, length};
  }
  return best;
}

// RFC 5952.
std::string v6_text(const Gid& gid) {
  Groups groups;
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i] = static_cast<std::uint16_t>(gid.bytes[2 * i] << 8 | gid.bytes[2 * i + 1]);
  const Gap gap = longest_gap(groups);
  std::string text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i == gap.first) {
      text += "::";
      i += gap.length - 1;
      continue;
    }
    if (!text.empty() && text.back() != ':') text += ':';
    append_number(text, groups[i], 16);
  }
  return text;
}

}  // namespace

std::optional<Gid> Gid::parse(std::string_view text) {
  if (const auto v4 = parse_v4(text)) return of_ipv4(*v4);
  return parse_v6(text);
}

std::string address_text(const Gid& gid) { return gid.is_ipv4() ? v4_text(gid) : v6_text(gid); }

std::string gid_text(const Gid& gid) {
  return gid.is_ipv4() ? "::ffff:" + v4_text(gid) : v6_text(gid);
}

}  // namespace softhca::wire
