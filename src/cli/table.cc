#include "cli/table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "os/environment.h"

namespace softhca::cli {
namespace {

constexpr std::size_t kGap = 2;         // blanks between columns
constexpr std::size_t kNarrowest = 16;  // a wrapped column is never narrower

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

Look look_of(int fd) {
  const bool dumb = os::env_text("TERM") == "dumb" || os::env_text("NO_COLOR");
  return {.terminal = ::isatty(fd) == 1 && !dumb, .columns = 80};
}

std::string toned(std::string_view text, Tone tone, const Look& look) {
  constexpr std::array<std::string_view, 6> kCodes = {"0", "1", "32", "33", "1;31", "2"};
  if (!look.terminal || tone == Tone::Plain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<std::size_t>(tone)], text);
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  ASSERT(indent < columns);
  const std::string margin(indent, ' ');
  const std::size_t room = columns - indent;
  std::string lines = margin;
  std::size_t width = 0;
  const auto break_line = [&] {
    lines += "\n" + margin;
    width = 0;
  };
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (width > 0 && width + 1 + word.size() > room) break_line();
    if (width > 0) {
      lines += ' ';
      ++width;
    }
    for (; word.size() > room; word.remove_prefix(room)) {
      lines += word.substr(0, room);
      break_line();
    }
    lines += word;
    width += word.size();
  }
  return lines;
}

std::string hanging(std::string_view text, std::size_t columns, std::size_t indent) {
  return wrapped(text, columns, indent).substr(indent);
}

std::string printable(std::string text) {
  const auto odd = [](char c) { return c < ' ' || c > '~'; };
  std::ranges::replace_if(text, odd, '?');
  return text;
}

void Table::add_row(std::vector<std::string> cells) {
  ASSERT(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  return widths;
}

std::string Table::text(const Look& look) const {
  const std::vector<std::size_t> width = widths();
  std::size_t last_at = indent_;  // where the last column starts
  for (std::size_t c = 0; c + 1 < width.size(); ++c) last_at += width[c] + kGap;
  const std::size_t right = std::max(look.columns, last_at + kNarrowest);

  const auto line = [&](const auto& cell) {
    std::string out(indent_, ' ');
    for (std::size_t c = 0; c + 1 < columns_.size(); ++c)
      out += columns_[c].align == Align::Left
                 ? fmt::format("{:<{}}", cell(c), width[c] + kGap)
                 : fmt::format("{:>{}}{:{}}", cell(c), width[c], "", kGap);
    const std::size_t last = columns_.size() - 1;
    const std::string& text = cell(last);
    if (columns_[last].align == Align::Right && last_at + width[last] <= right)
      out += fmt::format("{:>{}}", text, width[last]);
    else
      out += hanging(text, right, last_at);
    return without_trailing_blanks(out);
  };

  const std::string titles =
      line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  std::string out = std::string(indent_, ' ') +
                    toned(titles.substr(std::min(indent_, titles.size())), Tone::Strong, look) +
                    "\n";
  for (const auto& row : rows_)
    out += line([&](std::size_t c) -> const std::string& { return row[c]; }) + "\n";
  return out;
}

}  // namespace softhca::cli
