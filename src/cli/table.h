// Table: aligned text that fits a terminal of 80 columns.
//
// Everything printed is ASCII; colour and rules only where somebody looks at a terminal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/words.h"

namespace softhca::cli {

struct Look {
  bool terminal = false;  // colour and rules are welcome
  std::size_t columns = 80;
};

// That of a file descriptor: a terminal, unless NO_COLOR or TERM=dumb say otherwise.
Look look_of(int fd);

enum class Tone : std::uint8_t { Plain, Strong, Good, Warning, Bad, Faint };
std::string toned(std::string_view text, Tone tone, const Look& look);

using trace::bytes_text;
using trace::grouped;

// Breaks at blanks so that no line is longer than `columns`; a longer word is cut. Every line
// starts with `indent` blanks, which count. Ends without a newline.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent);
// The same behind a label: what stands in the first `indent` columns is there already.
std::string hanging(std::string_view text, std::size_t columns, std::size_t indent);

// Texts that other programs wrote, with what is not printable ASCII as "?".
std::string printable(std::string text);

class Table {
 public:
  enum class Align : std::uint8_t { Left, Right };
  struct Column {
    std::string title;
    Align align = Align::Left;
  };

  explicit Table(std::vector<Column> columns, std::size_t indent = 0)
      : columns_(std::move(columns)), indent_(indent) {}

  // REQUIRES: one cell for each column.
  void add_row(std::vector<std::string> cells);

  // Titles, then rows, each ending with a newline. What is too wide wraps in the last column.
  std::string text(const Look& look) const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::size_t indent_;
};

}  // namespace softhca::cli
