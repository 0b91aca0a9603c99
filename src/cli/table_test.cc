#include "cli/table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/prng.h"

namespace softhca::cli {
namespace {

TEST(Table, AlignsColumnsByTheirWidestCell) {
  Table table({{"NAME"}, {"BYTES", Table::Align::Right}, {"NOTE"}});
  table.add_row({"a", "7", "seven"});
  table.add_row({"longer", "123,456", ""});
  EXPECT_EQ(table.text({}),
            "NAME      BYTES  NOTE\n"
            "a             7  seven\n"
            "longer  123,456\n");
}

TEST(Table, WrapsTheLastColumnBelowItself) {
  Table table({{"A"}, {"TEXT"}}, 2);
  table.add_row({"x", "one two three four five"});
  EXPECT_EQ(table.text({.columns = 21}),
            "  A  TEXT\n"
            "  x  one two three\n"
            "     four five\n");
}

TEST(Table, ColoursOnlyOnATerminal) {
  Table table({{"A"}});
  table.add_row({"x"});
  EXPECT_EQ(table.text({.terminal = false}).find('\x1b'), std::string::npos);
  EXPECT_EQ(table.text({.terminal = true}), "\x1b[1mA\x1b[0m\nx\n");
  EXPECT_EQ(toned("x", Tone::Bad, {}), "x");
}

TEST(Table, GroupsDigitsByThree) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(Table, GivesBytesInTheLargestUnitThatLeavesAWhole) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(65536), "64 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(UINT64_MAX), "16.0 EiB");
}

TEST(Table, WrappedTextKeepsItsWordsAndItsWidth) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    std::string text;
    for (std::uint64_t words = prng.below(30); words > 0; --words)
      text += std::string(1 + prng.below(9), static_cast<char>('a' + prng.below(26))) + " ";
    const std::size_t columns = 12 + prng.below(40), indent = prng.below(3);
    const std::string lines = wrapped(text, columns, indent);

    std::istringstream given(text), made(lines);
    for (std::string word, same; given >> word;) {
      ASSERT_TRUE(made >> same) << seed;
      ASSERT_EQ(same, word) << seed;
    }
    std::istringstream rows(lines);
    for (std::string row; std::getline(rows, row);) ASSERT_LE(row.size(), columns) << seed;
  }
}

TEST(Table, CutsAWordThatIsLongerThanALine) {
  EXPECT_EQ(wrapped("abcdefgh", 4, 1), " abc\n def\n gh");
}

}  // namespace
}  // namespace softhca::cli
