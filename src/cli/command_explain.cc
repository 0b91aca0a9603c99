#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "cli/commands.h"
#include "cli/findings_text.h"
#include "driver/published.h"
#include "trace/reason.h"

namespace softhca::cli {
namespace {

namespace fs = std::filesystem;

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

// The recordings of a run that was told to write to `name`: NAME.PID.
std::string recordings_beside(const std::string& name) {
  const fs::path wanted(name);
  std::error_code error;
  std::string found;
  for (const auto& entry : fs::directory_iterator(
           wanted.has_parent_path() ? wanted.parent_path() : fs::path("."), error)) {
    const std::string file = entry.path().filename().string();
    const std::string start = wanted.filename().string() + ".";
    if (file.starts_with(start) &&
        file.find_first_not_of("0123456789.", start.size()) == std::string::npos)
      found += " " + (wanted.parent_path() / file).string();
  }
  return found;
}

std::string_view error_text(trace::RecordingError error) {
  switch (error) {
    case trace::RecordingError::NotOne:
      return "not a recording; softhca run --trace FILE -- PROGRAM writes one, to FILE.PID";
    case trace::RecordingError::OtherVersion:
      return "a recording of another version of softhca; record again, or read it with that one";
    case trace::RecordingError::Truncated:
      break;
  }
  return "a recording that is cut off; copy it whole, or record again";
}

int explain_file(const ExplainArguments& arguments, Terminal& terminal) {
  const auto refuse = [&](std::string_view why) {
    terminal.err << fmt::format("softhca explain: {}: {}\n", arguments.what, why);
    return 2;
  };
  std::error_code error;
  if (fs::is_directory(arguments.what, error)) return refuse("a folder; name a file");
  std::ifstream file(arguments.what, std::ios::binary);
  if (!file) return refuse(std::generic_category().message(errno));
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = std::move(content).str();
  const auto recorded = trace::read_recording(std::as_bytes(std::span(bytes)));
  if (!recorded) return refuse(error_text(recorded.error()));
  const trace::Findings findings = trace::findings_of(*recorded);
  terminal.out << (arguments.json ? findings_json(*recorded, findings)
                                  : findings_text(*recorded, findings, terminal.look));
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
    std::error_code error;
    if (fs::exists(arguments.what, error)) return explain_file(arguments, terminal);
    const std::string beside = recordings_beside(arguments.what);
    terminal.err << fmt::format("softhca explain: there is no reason and no file {}; {}\n",
                                arguments.what,
                                beside.empty() ? "softhca explain list shows all reasons"
                                               : "recordings of this name:" + beside);
    return 1;
  }
  terminal.out << (arguments.json ? json_of(*row).dump(2) + "\n" : text_of(*row, terminal.look));
  return 0;
}

}  // namespace softhca::cli
