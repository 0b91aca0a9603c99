#include "cli/findings_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using trace::Cause;
using trace::Findings;
using trace::Recorded;

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

bool is_closed(const Recorded& recorded) { return recorded.header.closed == 1; }

std::string head_text(const Recorded& recorded, const Findings& findings, const Look& look) {
  const trace::RecordingHeader& h = recorded.header;
  std::string text = toned(printable(fmt::format("{} (pid {}): {} on {}", text_of(h.program), h.pid,
                                                 text_of(h.device), text_of(h.interface))),
                           Tone::Strong, look);
  text += fmt::format("\n  {} events in {}\n", grouped(recorded.events.size()),
                      trace::time_text(findings.last - Time{}));
  const auto note = [&](const std::string& sentence) {
    text += "  " + hanging(sentence, look.columns, 2) + "\n";
  };
  if (!is_closed(recorded))
    note(
        "The device was not closed: the program exited, was killed, or still runs. What happened "
        "until then is here.");
  if (recorded.overwritten != 0)
    note(
        fmt::format("{} older events were overwritten; what was refused and what was slow is kept.",
                    grouped(recorded.overwritten)));
  if (h.no_room != 0)
    note(fmt::format("{} events are not here: the disk was full.", grouped(h.no_room)));
  return text;
}

std::string cause_text(const Cause& cause, const Look& look) {
  constexpr std::size_t kIndent = 4;
  const std::string what = cause.about.empty() ? "the device" : cause.about;
  std::string text = toned(fmt::format("{:>12}  {}{}", trace::time_text(cause.at - Time{}),
                                       printable(what), cause.is_warning ? " (warning)" : ""),
                           cause.is_warning ? Tone::Warning : Tone::Bad, look);
  text += "\n" + wrapped(printable(cause.text), look.columns, kIndent) + "\n";
  if (cause.repeated != 0)
    text += fmt::format("    The same again: {}.\n", trace::counted(cause.repeated, "time"));
  return text;
}

std::string delays_text(const Findings& findings, const Look& look) {
  if (findings.delays.empty())
    return "Nothing was sent again, and nothing waited for a receive of the peer.\n";
  constexpr auto kRight = Table::Align::Right;
  Table table({{"QP"},
               {"TIME-OUTS", kRight},
               {"SENT AGAIN", kRight},
               {"RNR WAITS", kRight},
               {"WAITED", kRight}},
              2);
  for (const trace::Delays& one : findings.delays)
    table.add_row({fmt::format("{:#x}", one.qpn), grouped(one.timeouts), grouped(one.retransmits),
                   grouped(one.rnr_waits), trace::time_text(one.rnr_waited)});
  return "What was slow:\n" + table.text(look);
}

}  // namespace

std::string findings_text(const Recorded& recorded, const Findings& findings, const Look& look) {
  std::string text = head_text(recorded, findings, look) + "\n";
  for (const Cause& cause : findings.causes) text += cause_text(cause, look) + "\n";
  if (std::ranges::all_of(findings.causes, &Cause::is_warning)) text += "Nothing was refused.\n\n";
  return text + delays_text(findings, look);
}

std::string findings_json(const Recorded& recorded, const Findings& findings) {
  const trace::RecordingHeader& h = recorded.header;
  Json causes = Json::array();
  for (const Cause& cause : findings.causes)
    causes.push_back({{"time_ps", cause.at.ps},
                      {"warning", cause.is_warning},
                      {"about", cause.about},
                      {"reason", static_cast<unsigned>(cause.reason)},
                      {"line", cause.text},
                      {"repeated", cause.repeated}});
  Json delays = Json::array();
  for (const trace::Delays& one : findings.delays)
    delays.push_back({{"qpn", one.qpn},
                      {"timeouts", one.timeouts},
                      {"retransmits", one.retransmits},
                      {"rnr_waits", one.rnr_waits},
                      {"rnr_wait_ps", one.rnr_waited.ps}});
  const Json all = {{"pid", h.pid},
                    {"program", text_of(h.program)},
                    {"device", text_of(h.device)},
                    {"interface", text_of(h.interface)},
                    {"closed", is_closed(recorded)},
                    {"events", recorded.events.size()},
                    {"overwritten", recorded.overwritten},
                    {"no_room", h.no_room},
                    {"last_ps", findings.last.ps},
                    {"causes", causes},
                    {"slow", delays}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace softhca::cli
