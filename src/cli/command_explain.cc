#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/commands.h"
#include "driver/published.h"
#include "trace/reason.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using trace::ReasonInfo;

unsigned number_of(const ReasonInfo& row) { return static_cast<unsigned>(row.id); }

Json json_of(const ReasonInfo& row) {
  return {{"number", number_of(row)},
          {"name", row.name},
          {"checker", trace::checker_name(row.checker)},
          {"rule", row.rule},
          {"remedy", row.remedy}};
}

// By number, decimal or 0x..., or by name.
const ReasonInfo* find(const std::string& what) {
  const auto rows = trace::reasons();
  const bool hex = what.starts_with("0x") || what.starts_with("0X");
  const char* const first = what.data() + (hex ? 2 : 0);
  const char* const last = what.data() + what.size();
  unsigned number = 0;
  const auto [end, error] = std::from_chars(first, last, number, hex ? 16 : 10);
  const bool numeric = error == std::errc() && end == last;
  const auto found = std::ranges::find_if(rows, [&](const ReasonInfo& row) {
    return numeric ? number_of(row) == number : row.name == what;
  });
  return found == rows.end() ? nullptr : &*found;
}

std::string text_of(const ReasonInfo& row, const Look& look) {
  const auto line = [&](std::string_view label, std::string_view text) {
    constexpr std::size_t kIndent = 13;
    return fmt::format("  {:<11}{}\n", label, hanging(text, look.columns, kIndent));
  };
  return toned(fmt::format("{} ({})", row.name, number_of(row)), Tone::Strong, look) + "\n" +
         line("checked by", fmt::format("the {}", trace::checker_name(row.checker))) +
         line("rule", row.rule) + line("remedy", row.remedy);
}

void list_all(bool json, Terminal& terminal) {
  Json all = Json::array();
  Table table({{"NUMBER", Table::Align::Right}, {"NAME"}, {"CHECKED BY"}, {"RULE"}});
  for (const ReasonInfo& row : trace::reasons()) {
    all.push_back(json_of(row));
    table.add_row({std::to_string(number_of(row)), std::string(row.name),
                   std::string(trace::checker_name(row.checker)), std::string(row.rule)});
  }
  terminal.out << (json ? all.dump(2) + "\n" : table.text(terminal.look));
}

// docs/reasons.md
std::string page() {
  std::string text =
      "# Reasons\n\nWhat the device, its driver or the host refuses, and what to change. The "
      "number is"
      " the\ncompletion's `vendor_err`; `softhca explain NUMBER` tells the same. This page is made "
      "by"
      "\n`softhca explain page`.\n\n| number | name | checked by | rule | remedy "
      "|\n|---|---|---|---|---|"
      "\n";
  for (const ReasonInfo& row : trace::reasons())
    text += fmt::format("| {} | {} | {} | {} | {} |\n", number_of(row), row.name,
                        trace::checker_name(row.checker), row.rule, row.remedy);
  return text;
}

int explain_program(const ExplainArguments& arguments, Terminal& terminal) {
  Json all = Json::array();
  std::string text;
  for (const driver::PublishedDevice& device : driver::published_devices()) {
    if (device.pid != arguments.pid) continue;
    all.push_back({{"device", device.device}, {"refusals", device.refusals}});
    for (const std::string& line : device.refusals)
      text += fmt::format("{}: {}\n", device.device, line);
    if (device.refusals.empty()) text += fmt::format("{}: nothing was refused\n", device.device);
  }
  if (all.empty()) {
    terminal.err << fmt::format(
        "softhca explain: process {} has no device open that you may look at\n", arguments.pid);
    return 1;
  }
  terminal.out << (arguments.json ? all.dump(2) + "\n" : text);
  return 0;
}

}  // namespace

int command_explain(const ExplainArguments& arguments, Terminal& terminal) {
  if (arguments.pid != 0) return explain_program(arguments, terminal);
  if (arguments.what == "page") {
    terminal.out << page();
    return 0;
  }
  if (arguments.what == "list") {
    list_all(arguments.json, terminal);
    return 0;
  }
  const ReasonInfo* row = find(arguments.what);
  if (row == nullptr) {
    terminal.err << fmt::format(
        "softhca explain: there is no reason {}; softhca explain list shows all\n", arguments.what);
    return 1;
  }
  terminal.out << (arguments.json ? json_of(*row).dump(2) + "\n" : text_of(*row, terminal.look));
  return 0;
}

}  // namespace softhca::cli
