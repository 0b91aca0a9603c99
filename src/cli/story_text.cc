#include "cli/story_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace softhca::cli {
namespace {

constexpr std::size_t kTextIndent = 4;
constexpr std::size_t kDetailIndent = 6;

std::string rule(const Look& look) {
  std::string line;
  for (std::size_t i = 0; i < look.columns; ++i) line += "\u2500";
  return toned(line, Tone::Faint, look);
}

// A heading with the host at the right end; a rule between them where somebody looks.
std::string heading(const std::string& left, const std::string& right, bool bad, const Look& look) {
  const std::size_t used = left.size() + right.size() + 2;
  const std::size_t gap = look.columns > used ? look.columns - used : 1;
  std::string filling;
  for (std::size_t i = 0; i < gap; ++i) filling += look.terminal ? "\u2500" : " ";
  if (!look.terminal && right.empty()) filling.clear();
  std::string line = toned(left, bad ? Tone::Bad : Tone::Strong, look);
  if (!filling.empty()) line += " " + toned(filling, Tone::Faint, look);
  if (!right.empty()) line += " " + toned(right, Tone::Faint, look);
  return line;
}

std::string phase_text(const std::string& phase, const Look& look) {
  return toned(phase, Tone::Good, look) + "\n";
}

std::string mark_text(sim::Mark mark) {
  switch (mark) {
    case sim::Mark::None:
      return "";
    case sim::Mark::Refused:
      return ": refused";
    case sim::Mark::Unnoticed:
      return ": nobody noticed";
  }
  return "";
}

struct Labelled {
  std::string_view label, text;
};

// Texts one below the other, behind the longest label.
std::string labelled_text(const std::vector<Labelled>& lines, Tone tone, const Look& look) {
  std::size_t widest = 0;
  for (const Labelled& line : lines) widest = std::max(widest, line.label.size());
  const std::size_t at = kTextIndent + widest + 2;
  std::string out;
  for (const Labelled& line : lines)
    out += std::string(kTextIndent, ' ') +
           toned(fmt::format("{:<{}}", line.label, widest), tone, look) + "  " +
           hanging(line.text, look.columns, at) + "\n";
  return out;
}

// A line will do, unless all is wanted.
std::string brief_text(const sim::Step& step, std::size_t number, const Look& look) {
  constexpr std::size_t kTitleWidth = 17;
  const std::size_t at = kTextIndent + kTitleWidth;
  return toned(fmt::format("{:>2}  {:<{}}", number, step.title, kTitleWidth), Tone::Strong, look) +
         hanging(step.told, look.columns, at) + "\n";
}

std::string step_text(const sim::Step& step, std::size_t number, bool all, const Look& look) {
  if (step.is_brief && !all) return brief_text(step, number, look);
  std::string out = heading(fmt::format("{:>2}  {}{}", number, step.title, mark_text(step.mark)),
                            step.host, step.mark != sim::Mark::None, look) +
                    "\n";
  out += wrapped(step.told, look.columns, kTextIndent) + "\n";
  std::vector<Labelled> facts;
  for (const sim::Fact& fact : step.facts) facts.push_back({fact.name, fact.value});
  out += labelled_text(facts, Tone::Faint, look);
  if (all)
    for (const std::string& detail : step.details)
      out += wrapped(detail, look.columns, kDetailIndent) + "\n";
  return out;
}

std::string ledger_table(const sim::Story& story, bool all, const Look& look) {
  using Align = Table::Align;
  std::vector<Table::Column> columns = {
      {"What the transfer took"}, {"client", Align::Right}, {"server", Align::Right}};
  if (story.has_sockets) {
    columns.push_back({"sockets: client", Align::Right});
    columns.push_back({"server", Align::Right});
  }
  Table table(std::move(columns), kTextIndent);
  for (const sim::LedgerRow& row : story.ledger) {
    if (row.is_detail && !all) continue;
    const auto cell = [&](std::uint64_t n) {
      if (row.unit != "ns" || n == 0) return grouped(n);
      return trace::time_text(nanoseconds(static_cast<std::int64_t>(n)));
    };
    std::vector<std::string> cells = {row.name, cell(row.rdma[0]), cell(row.rdma[1])};
    if (story.has_sockets) {
      cells.push_back(cell(row.sockets[0]));
      cells.push_back(cell(row.sockets[1]));
    }
    table.add_row(std::move(cells));
  }
  std::string out = table.text(look);
  if (story.has_sockets)
    out += wrapped("Of sockets only the payload is counted, not descriptors, nor TCP's answers.",
                   look.columns, kTextIndent) +
           "\n";
  return out;
}

std::string microseconds_text(Duration time) {
  return fmt::format("{:.2f} us", static_cast<double>(time.ps) / 1e6);
}

std::string ways_table(const sim::Story& story, const Look& look) {
  using Align = Table::Align;
  Table table({{fmt::format("{} each, caches warm", grouped(story.ways.front().transfers))},
               {"RDMA", Align::Right},
               {"sockets", Align::Right}},
              kTextIndent);
  const sim::WaySummary& rdma = story.ways.front();
  const sim::WaySummary& sockets = story.ways.back();
  const auto row = [&](const char* name, auto value) {
    table.add_row({name, value(rdma), value(sockets)});
  };
  row("CPU busy per transfer, loops included",
      [](const auto& w) { return microseconds_text(w.cpu_busy); });
  row("latency, mean", [](const auto& w) { return microseconds_text(w.latency_mean); });
  row("latency, median", [](const auto& w) { return microseconds_text(w.latency_p50); });
  row("latency, 99 of 100", [](const auto& w) { return microseconds_text(w.latency_p99); });
  row("99 of 100, by the median", [](const auto& w) {
    const auto p50 = static_cast<double>(w.latency_p50.ps);
    return fmt::format("{:.2f}", p50 == 0 ? 0 : static_cast<double>(w.latency_p99.ps) / p50);
  });
  row("bytes copied by CPUs, per transfer",
      [](const auto& w) { return grouped(w.cpu_copy_bytes); });
  row("system calls", [](const auto& w) { return grouped(w.system_calls); });
  row("interrupts", [](const auto& w) { return grouped(w.interrupts); });
  return table.text(look);
}

std::string views_text(const sim::Story& story, const Look& look) {
  std::vector<Labelled> views;
  for (const sim::View& view : story.views) views.push_back({view.who, view.sees});
  return heading("What each of them sees", "", false, look) + "\n" +
         labelled_text(views, Tone::Strong, look);
}

}  // namespace

std::string story_text(const sim::Story& story, bool all, const Look& look) {
  std::string out = toned(wrapped(story.headline, look.columns, 0), Tone::Strong, look) + "\n";
  for (const std::string& line : story.setting) out += wrapped(line, look.columns, 0) + "\n";
  out += look.terminal ? rule(look) + "\n" : "\n";
  std::size_t number = 0;
  std::string phase;
  for (const sim::Step& step : story.steps) {
    if (step.phase != phase) out += phase_text(step.phase, look);
    phase = step.phase;
    out += step_text(step, ++number, all, look);
  }
  if (!story.views.empty()) out += "\n" + views_text(story, look);
  if (!story.remedy.empty())
    out += "\n" + wrapped("What to change: " + story.remedy, look.columns, 0) + "\n";
  if (!story.ledger.empty()) out += "\n" + ledger_table(story, all, look);
  if (!story.ways.empty()) out += "\n" + ways_table(story, look);
  if (!story.citations.empty() && all) {
    out += "\n" + heading("Where the times come from", "", false, look) + "\n";
    for (const sim::Citation& c : story.citations)
      out += wrapped(fmt::format("{}: {} ({})", c.name, c.value, c.source), look.columns,
                     kTextIndent) +
             "\n";
  }
  if (!all && story.views.empty())
    out += "\nMore: --steps (all there is to see), --sockets (beside it), --wrong list\n";
  return out;
}

}  // namespace softhca::cli
