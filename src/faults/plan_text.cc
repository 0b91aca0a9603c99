#include "faults/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <limits>
#include <locale>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

// toml++ 3.3 asserts on some files that are not TOML ("[="), which would end the program that we
// are a guest of; and with NDEBUG it would take for granted what it asserts.
namespace softhca::faults {
constexpr void expect_of_toml(bool holds) {
  if (!holds) throw std::logic_error("toml++");
}
}  // namespace softhca::faults
#undef NDEBUG
#define TOML_ASSERT(expression) softhca::faults::expect_of_toml(static_cast<bool>(expression))
#include <toml++/toml.h>

#include "base/prng.h"
#include "wire/opcode.h"

namespace softhca::faults {
namespace {

using Whats = std::uint32_t;  // bits by What

constexpr Whats bit(What what) { return Whats{1} << static_cast<unsigned>(what); }
template <class... W>
constexpr Whats bits(W... whats) {
  return (bit(whats) | ...);
}

using enum What;
constexpr Whats kPackets = bits(Drop, Duplicate, Delay, Reorder, Corrupt, Truncate, Sever);
constexpr Whats kRequests = bits(StallResponder, ForceRnr);
constexpr Whats kAccesses = bits(SlowDma, FailTranslation);
constexpr Whats kAll = (Whats{1} << kWhats) - 1;

constexpr std::array<std::string_view, kWhats> kNames = {
    "drop",  "duplicate", "delay",           "reorder",   "corrupt",  "truncate",
    "sever", "fail_work", "stall_responder", "force_rnr", "slow_dma", "fail_translation"};

constexpr std::int64_t kNumberAtMost = std::numeric_limits<std::int64_t>::max();
constexpr Duration kTimeAtMost = seconds(3600);

struct Numbered {
  std::string_view name;
  std::uint8_t number;
};

// As in <infiniband/verbs.h>, without IBV_WC_ in front. Only what can be a first cause.
constexpr Numbered kStatuses[] = {
    {"LOC_LEN_ERR", 1},       {"LOC_QP_OP_ERR", 2},      {"LOC_PROT_ERR", 4},
    {"MW_BIND_ERR", 6},       {"BAD_RESP_ERR", 7},       {"LOC_ACCESS_ERR", 8},
    {"REM_INV_REQ_ERR", 9},   {"REM_ACCESS_ERR", 10},    {"REM_OP_ERR", 11},
    {"RETRY_EXC_ERR", 12},    {"RNR_RETRY_EXC_ERR", 13}, {"FATAL_ERR", 19},
    {"RESP_TIMEOUT_ERR", 20}, {"GENERAL_ERR", 21}};
// Without IBV_WR_.
constexpr Numbered kOperations[] = {
    {"RDMA_WRITE", 0},           {"RDMA_WRITE_WITH_IMM", 1}, {"SEND", 2},
    {"SEND_WITH_IMM", 3},        {"RDMA_READ", 4},           {"ATOMIC_CMP_AND_SWP", 5},
    {"ATOMIC_FETCH_AND_ADD", 6}, {"LOCAL_INV", 7},           {"BIND_MW", 8},
    {"SEND_WITH_INV", 9},        {"ATOMIC_WRITE", 15}};

struct PacketClass {
  std::string_view name;
  wire::Kind kind;
};
constexpr PacketClass kClasses[] = {{"SEND", wire::Kind::Send},
                                    {"WRITE", wire::Kind::Write},
                                    {"READ_REQUEST", wire::Kind::ReadRequest},
                                    {"READ_RESPONSE", wire::Kind::ReadResponse},
                                    {"ACK", wire::Kind::Acknowledge},
                                    {"ATOMIC", wire::Kind::Atomic},
                                    {"ATOMIC_ACK", wire::Kind::AtomicAcknowledge},
                                    {"ATOMIC_WRITE", wire::Kind::AtomicWrite},
                                    {"CNP", wire::Kind::Congestion}};

std::string_view without(std::string_view prefix, std::string_view name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

template <class Rows>
std::string list_of(const Rows& rows) {
  std::string text;
  for (const auto& row : rows) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

template <class Rows>
auto* row_named(const Rows& rows, std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const auto& row) { return row.name == name; });
  return found == std::end(rows) ? nullptr : &*found;
}

template <class Fits>
std::bitset<256> opcodes_that(Fits fits) {
  std::bitset<256> opcodes;
  for (unsigned opcode = 0; opcode < opcodes.size(); ++opcode)
    if (const auto* info = wire::find_opcode(static_cast<std::uint8_t>(opcode)))
      opcodes[opcode] = fits(*info);
  return opcodes;
}

// FNV-1a. Of the fault as TOML writes it, so that its stream depends on nothing but itself.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// "5 ms", "1.5 s"; nothing if it makes no sense, is 0 or more than an hour.
std::optional<Duration> duration_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const double ps = unit == "ns"   ? 1e3
                    : unit == "us" ? 1e6
                    : unit == "ms" ? 1e9
                    : unit == "s"  ? 1e12
                                   : 0;
  const double all = number * ps;
  if (!(all >= 1 && all <= static_cast<double>(kTimeAtMost.ps))) return std::nullopt;
  return picoseconds(static_cast<std::int64_t>(all));
}

// Names of keys may hold anything; what is said about them is one line.
PlanError error_at(const std::string& name, std::uint32_t line, std::string_view text) {
  PlanError error{fmt::format("{}:{}: {}", name, line, text)};
  std::ranges::replace_if(
      error.text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return error;
}

std::uint32_t line_of(const toml::node& node) { return node.source().begin.line; }

// One [[fault]]. Keeps the first error.
class FaultReader {
 public:
  explicit FaultReader(const toml::table& table) : table_(table) {}

  bool read();
  const Fault& fault() const { return fault_; }
  std::uint32_t error_line() const { return error_line_; }
  const std::string& error() const { return error_; }

 private:
  using Node = const toml::node&;
  struct Key {
    std::string_view name;
    Whats whats;
    void (FaultReader::*take)(Node);
    Whats required_by = 0;
  };
  static const Key kKeys[];

  void refuse(std::uint32_t line, const std::string& text) {
    if (!error_.empty()) return;
    error_line_ = line;
    error_ = text;
  }
  std::string keys_text() const;
  void finish();

  std::int64_t number(Node node, std::string_view key, std::int64_t low, std::int64_t high);
  std::string text(Node node, std::string_view key, const std::string& wanted);
  template <class Rows>
  void take_number_of(Node node, std::string_view key, std::string_view prefix, const Rows& rows,
                      std::uint8_t& into);
  Duration time(Node node, std::string_view key);

  void take_what(Node) {}
  void take_direction(Node node);
  void take_access(Node node);
  void take_qp(Node node);
  void take_nth_qp(Node node) {
    fault_.nth_qp = static_cast<std::uint32_t>(number(node, "nth_qp", 1, 1'000'000));
  }
  void take_opcode(Node node);
  void take_class(Node node);
  void take_psn(Node node);
  void take_operation(Node node);
  void take_status(Node node) {
    take_number_of(node, "status", "IBV_WC_", kStatuses, fault_.status);
  }
  // TOML's integers have a sign.
  void take_wr_id(Node node) {
    fault_.wr_id = static_cast<std::uint64_t>(
        number(node, "wr_id", std::numeric_limits<std::int64_t>::min(), kNumberAtMost));
  }
  void take_region(Node node) {
    fault_.region = static_cast<std::uint32_t>(number(node, "region", 1, 1'000'000));
  }
  void take_nth(Node node) { fault_.nth = counted(node, "nth"); }
  void take_every(Node node) { fault_.every = counted(node, "every"); }
  void take_count(Node node) { fault_.count = counted(node, "count"); }
  std::uint64_t counted(Node node, std::string_view key) {
    return static_cast<std::uint64_t>(number(node, key, 1, kNumberAtMost));
  }
  void take_ratio(Node node);
  void take_delay(Node node) { fault_.time = time(node, "delay"); }
  void take_duration(Node node) { fault_.time = time(node, "duration"); }
  void take_bytes(Node node) {
    fault_.bytes = static_cast<std::uint32_t>(number(node, "bytes", 1, 4096));
  }
  void take_passed_by(Node node) {
    fault_.passed_by = static_cast<std::uint32_t>(number(node, "passed_by", 1, 64));
  }

  const toml::table& table_;
  Fault fault_;
  std::uint32_t error_line_ = 0;
  std::string error_;
};

constexpr Whats kByPacket = kPackets | kRequests;

const FaultReader::Key FaultReader::kKeys[] = {
    {"what", kAll, &FaultReader::take_what},
    {"direction", kPackets, &FaultReader::take_direction},
    {"access", kAccesses, &FaultReader::take_access},
    {"qp", kByPacket | bit(FailWork), &FaultReader::take_qp},
    {"nth_qp", kByPacket | bit(FailWork), &FaultReader::take_nth_qp},
    {"opcode", kByPacket, &FaultReader::take_opcode},
    {"class", kByPacket, &FaultReader::take_class},
    {"psn", kByPacket, &FaultReader::take_psn},
    {"operation", bit(FailWork), &FaultReader::take_operation},
    {"wr_id", bit(FailWork), &FaultReader::take_wr_id},
    {"region", kAccesses, &FaultReader::take_region},
    {"nth", kAll, &FaultReader::take_nth},
    {"every", kAll, &FaultReader::take_every},
    {"ratio", kAll, &FaultReader::take_ratio},
    {"count", kAll, &FaultReader::take_count},
    {"status", bit(FailWork), &FaultReader::take_status, bit(FailWork)},
    {"delay", bits(Delay, SlowDma), &FaultReader::take_delay, bits(Delay, SlowDma)},
    {"duration", bits(Sever, StallResponder), &FaultReader::take_duration},
    {"bytes", bit(Truncate), &FaultReader::take_bytes},
    {"passed_by", bit(Reorder), &FaultReader::take_passed_by},
};

std::string FaultReader::keys_text() const {
  std::string text;
  for (const Key& key : kKeys)
    if ((key.whats & bit(fault_.what)) != 0)
      text += (text.empty() ? "" : ", ") + std::string(key.name);
  return text;
}

bool FaultReader::read() {
  fault_.line = line_of(table_);
  const toml::node* const what = table_.get("what");
  const auto name = what == nullptr ? std::nullopt : what->value<std::string_view>();
  const auto found = std::ranges::find(kNames, name.value_or(""));
  if (found == kNames.end()) {
    std::string all;
    for (const std::string_view one : kNames) all += (all.empty() ? "" : ", ") + std::string(one);
    refuse(what == nullptr ? fault_.line : line_of(*what), "what must be one of " + all);
    return false;
  }
  fault_.what = static_cast<What>(found - kNames.begin());
  for (const auto& [key, node] : table_) {
    const Key* const row = row_named(kKeys, key.str());
    if (row == nullptr || (row->whats & bit(fault_.what)) == 0)
      refuse(line_of(node),
             fmt::format("{} has no key {}; it may have {}", *found, key.str(), keys_text()));
    else
      (this->*row->take)(node);
  }
  for (const Key& key : kKeys)
    if ((key.required_by & bit(fault_.what)) != 0 && table_.get(key.name) == nullptr)
      refuse(fault_.line, fmt::format("{} needs {}; add {} = ...", *found, key.name, key.name));
  finish();
  return error_.empty();
}

// What is said by what is left out.
void FaultReader::finish() {
  const bool has_nth = table_.contains("nth");
  const bool has_every = table_.contains("every");
  const bool has_ratio = table_.contains("ratio");
  if (has_every && has_ratio)
    return refuse(fault_.line, "every and ratio are two ways to choose; keep one of them");
  if (table_.contains("opcode") && table_.contains("class"))
    return refuse(fault_.line, "opcode and class are two ways to name packets; keep one of them");
  if (has_every && !has_nth) fault_.nth = fault_.every;
  const bool is_once = has_nth || fault_.what == Sever || fault_.what == StallResponder;
  if (is_once && !has_every && !has_ratio && !table_.contains("count")) fault_.count = 1;
}

std::int64_t FaultReader::number(Node node, std::string_view key, std::int64_t low,
                                 std::int64_t high) {
  const auto value = node.value_exact<std::int64_t>();
  if (value && *value >= low && *value <= high) return *value;
  const std::string bounds = high == kNumberAtMost ? (low == 1 ? " above 0" : "")
                                                   : fmt::format(" from {} to {}", low, high);
  refuse(line_of(node), fmt::format("{} must be a whole number{}", key, bounds));
  return 1;
}

std::string FaultReader::text(Node node, std::string_view key, const std::string& wanted) {
  const auto value = node.value_exact<std::string>();
  if (!value) refuse(line_of(node), fmt::format("{} must be {}, in quotes", key, wanted));
  return value.value_or("");
}

template <class Rows>
void FaultReader::take_number_of(Node node, std::string_view key, std::string_view prefix,
                                 const Rows& rows, std::uint8_t& into) {
  const std::string wanted = "one of " + list_of(rows);
  const std::string name = text(node, key, wanted);
  if (const auto* row = row_named(rows, without(prefix, name)))
    into = row->number;
  else
    refuse(line_of(node), fmt::format("{} must be {}", key, wanted));
}

void FaultReader::take_operation(Node node) {
  std::uint8_t opcode = 0;
  take_number_of(node, "operation", "IBV_WR_", kOperations, opcode);
  fault_.opcodes.reset().set(opcode);
}

Duration FaultReader::time(Node node, std::string_view key) {
  const std::string wanted = "a time above 0 and up to 3600 s, as \"5 ms\" (ns, us, ms, s)";
  const auto time = duration_of(text(node, key, wanted));
  if (!time) refuse(line_of(node), fmt::format("{} must be {}", key, wanted));
  return time.value_or(Duration{});
}

void FaultReader::take_direction(Node node) {
  const std::string name = text(node, "direction", "send or receive");
  fault_.side = name == "send" ? Side::Out : Side::In;
  if (name != "send" && name != "receive")
    refuse(line_of(node), "direction must be send or receive; leave it out for both");
}

void FaultReader::take_access(Node node) {
  const std::string name = text(node, "access", "read or write");
  fault_.side = name == "write" ? Side::Out : Side::In;
  if (name != "read" && name != "write")
    refuse(line_of(node),
           "access must be read or write, as the device sees it; leave it out for both");
}

void FaultReader::take_qp(Node node) {
  if (node.value_exact<std::string_view>() == "any") return;
  const auto value = node.value_exact<std::int64_t>();
  if (value && *value >= 0 && *value <= wire::kMask24)
    fault_.qpn = wire::Qpn{static_cast<std::uint32_t>(*value)};
  else
    refuse(line_of(node), "qp must be a queue pair's number, from 0 to 0xffffff, or \"any\"");
}

// "RC_WRITE_MIDDLE", or "WRITE_MIDDLE" of every service.
void FaultReader::take_opcode(Node node) {
  const std::string wanted = "a packet's name, as RC_WRITE_MIDDLE or WRITE_MIDDLE";
  const std::string given = text(node, "opcode", wanted);
  const std::string_view name = without("RDMA_", given);
  fault_.opcodes = opcodes_that([&](const wire::OpcodeInfo& info) {
    return info.name == name || info.name.substr(info.name.find('_') + 1) == name;
  });
  if (fault_.opcodes.none())
    refuse(line_of(node), fmt::format("opcode must be {}; docs/faults.md has all of them", wanted));
}

void FaultReader::take_class(Node node) {
  const std::string wanted = "one of " + list_of(kClasses);
  const auto* const row = row_named(kClasses, text(node, "class", wanted));
  if (row == nullptr) return refuse(line_of(node), "class must be " + wanted);
  fault_.opcodes =
      opcodes_that([&](const wire::OpcodeInfo& info) { return info.kind == row->kind; });
}

void FaultReader::take_psn(Node node) {
  const auto psn_of = [](const toml::node* one) -> std::optional<wire::Psn> {
    const auto value = one == nullptr ? std::nullopt : one->value_exact<std::int64_t>();
    if (!value || *value < 0 || *value > wire::kMask24) return std::nullopt;
    return wire::Psn{static_cast<std::uint32_t>(*value)};
  };
  const toml::array* const pair = node.as_array();
  const bool is_pair = pair != nullptr && pair->size() == 2;
  const auto first = psn_of(is_pair ? pair->get(0) : &node);
  const auto last = is_pair ? psn_of(pair->get(1)) : first;
  if (first && last)
    fault_.psn = {*first, *last};
  else
    refuse(line_of(node), "psn must be a number from 0 to 0xffffff, or [first, last]");
}

void FaultReader::take_ratio(Node node) {
  const double ratio = node.value<double>().value_or(0);
  constexpr double kWhole = 4294967296.0;
  if (!(ratio > 0 && ratio <= 1))
    return refuse(line_of(node), "ratio must be a number above 0 and at most 1");
  if (ratio < 1)
    fault_.chance = std::max(std::uint32_t{1}, static_cast<std::uint32_t>(ratio * kWhole));
}

// Of a text on which toml++ asserts, which tells no line: where the shortest beginning ends on
// which it does.
std::uint32_t breaking_line(std::string_view text) {
  constexpr std::uint32_t kLinesAtMost = 1000;
  std::uint32_t line = 1;
  for (std::size_t end = 0; line < kLinesAtMost; ++line) {
    end = text.find('\n', end);
    if (end == std::string_view::npos) break;
    ++end;
    try {
      static_cast<void>(toml::parse(text.substr(0, end)));
    } catch (const toml::parse_error&) {
    } catch (const std::logic_error&) {
      break;
    }
  }
  return line;
}

// Where a letter beyond ASCII stands outside quotes and comments: no key has one, and toml++ 3.3 is
// lost at some (U+FEFE).
std::optional<std::uint32_t> line_beyond_ascii(std::string_view text) {
  std::uint32_t line = 1;
  char quote = 0;
  bool in_comment = false;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      quote = 0;
      in_comment = false;
    } else if (in_comment) {
      continue;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      in_comment = true;
    } else if ((static_cast<unsigned char>(c) & 0x80) != 0) {
      return line;
    }
  }
  return std::nullopt;
}

// The plan as a whole.
class PlanReader {
 public:
  PlanReader(const toml::table& root, const std::string& name) : root_(root), name_(name) {}

  Result<Plan, PlanError> read();

 private:
  PlanError error(std::uint32_t line, const std::string& text) const {
    return error_at(name_, line, text);
  }
  std::optional<PlanError> read_fault(const toml::node& node);

  const toml::table& root_;
  const std::string& name_;
  std::uint64_t seed_ = 1;
  std::map<std::uint64_t, std::uint64_t> alike_;  // faults that say the same, by their hash
  Plan plan_;
};

std::optional<PlanError> PlanReader::read_fault(const toml::node& node) {
  const toml::table* const table = node.as_table();
  if (table == nullptr)
    return error(line_of(node), "fault must be a table; begin it with [[fault]]");
  FaultReader reader(*table);
  if (!reader.read()) return error(reader.error_line(), reader.error());
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << *table;
  const std::uint64_t hash = hash_of(text.str());
  Fault fault = reader.fault();
  fault.seed = Prng((seed_ ^ hash) + alike_[hash]++).next();
  plan_.faults.push_back(fault);
  return std::nullopt;
}

Result<Plan, PlanError> PlanReader::read() {
  plan_.name = name_.substr(name_.rfind('/') + 1);
  for (const auto& [key, node] : root_) {
    if (key.str() == "seed") {
      const auto seed = node.value_exact<std::int64_t>();
      if (!seed || *seed < 0) return error(line_of(node), "seed must be a whole number from 0 on");
      seed_ = static_cast<std::uint64_t>(*seed);
    } else if (key.str() != "fault") {
      return error(
          line_of(node),
          fmt::format("a plan has no key {}; it may have seed, and any number of [[fault]]",
                      key.str()));
    }
  }
  const toml::node* const faults = root_.get("fault");
  const toml::array* const list = faults == nullptr ? nullptr : faults->as_array();
  if (list == nullptr || list->empty())
    return error(faults == nullptr ? 1 : line_of(*faults),
                 "there is no fault in it; write [[fault]] and what = ... below it");
  if (list->size() > kFaultsAtMost)
    return error(line_of(*faults),
                 fmt::format("{} faults; a plan may have {} at most", list->size(), kFaultsAtMost));
  for (const toml::node& node : *list)
    if (auto bad = read_fault(node)) return *bad;
  return std::move(plan_);
}

}  // namespace

std::string_view what_name(What what) { return kNames[static_cast<std::size_t>(what)]; }

Result<Plan, PlanError> parse_plan(std::string_view text, const std::string& name) {
  if (const auto line = line_beyond_ascii(text))
    return error_at(name, *line, "a letter beyond ASCII, outside of quotes and comments");
  try {
    return PlanReader(toml::parse(text), name).read();
  } catch (const toml::parse_error& bad) {
    return error_at(name, bad.source().begin.line, fmt::format("not TOML: {}", bad.description()));
  } catch (const std::logic_error&) {
    return error_at(name, breaking_line(text), "not TOML: there is no key where one has to be");
  }
}

Result<Plan, PlanError> read_plan(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kPlanBytesAtMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    return PlanError{path + ": cannot be read; check the name of the file and who may read it"};
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kPlanBytesAtMost)
    return PlanError{path + ": longer than 1 MiB, which no plan is"};
  return parse_plan(text, path);
}

}  // namespace softhca::faults
