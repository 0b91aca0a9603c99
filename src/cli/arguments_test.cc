#include "cli/arguments.h"

#include <gtest/gtest.h>

#include <sstream>

namespace softhca::cli {
namespace {

using Words = std::vector<std::string>;

template <class T>
T parsed(const Words& words) {
  const auto arguments = parse_arguments(words);
  EXPECT_TRUE(arguments) << (arguments ? "" : arguments.error().line);
  if (!arguments || !std::holds_alternative<T>(*arguments)) {
    ADD_FAILURE() << "parsed as something else";
    return {};
  }
  return std::get<T>(*arguments);
}

std::string refused(const Words& words) {
  const auto arguments = parse_arguments(words);
  return arguments ? "accepted" : arguments.error().line;
}

TEST(Arguments, RunTakesEveryOptionAndTheProgramBehindTheMark) {
  const auto run = parsed<RunArguments>(
      {"run", "--netdev", "eth0", "--strict", "--pcap=a.pcap", "--trace", "a.trace", "--ledger",
       "a.ledger", "--pin", "mlock", "--scatter", "--", "ib_send_lat", "-x", "0", "--help"});
  EXPECT_EQ(run.netdev, "eth0");
  EXPECT_TRUE(run.strict);
  EXPECT_TRUE(run.scatter);
  EXPECT_EQ(run.pcap, "a.pcap");
  EXPECT_EQ(run.trace, "a.trace");
  EXPECT_EQ(run.ledger, "a.ledger");
  EXPECT_EQ(run.pin, "mlock");
  EXPECT_EQ(run.program, (Words{"ib_send_lat", "-x", "0", "--help"}));
}

TEST(Arguments, TheFirstWordThatIsNotAnOptionBeginsTheProgram) {
  const auto run = parsed<RunArguments>({"run", "--strict", "env", "--strict", "-i", "--help"});
  EXPECT_TRUE(run.strict);
  EXPECT_EQ(run.program, (Words{"env", "--strict", "-i", "--help"}));
}

TEST(Arguments, TheProgramKeepsItsWordsWhateverTheyLookLike) {
  EXPECT_EQ(parsed<RunArguments>({"run", "sh", "--", "-c", ""}).program,
            (Words{"sh", "--", "-c", ""}));
  EXPECT_EQ(parsed<RunArguments>({"run", "--", "p", "--", "[a,b]", "{}", "%%", "-"}).program,
            (Words{"p", "--", "[a,b]", "{}", "%%", "-"}));
  EXPECT_EQ(parsed<RunArguments>({"run", "p", "[a,b]"}).program, (Words{"p", "[a,b]"}));
  for (const char* name : {"run", "devices", "doctor", "stat"})
    EXPECT_EQ(parsed<RunArguments>({"run", name, "stat"}).program, (Words{name, "stat"}));
}

TEST(Arguments, RunWithoutOptionsSetsNone) {
  const auto run = parsed<RunArguments>({"run", "p"});
  EXPECT_FALSE(run.netdev || run.pcap || run.trace || run.ledger || run.pin);
  EXPECT_FALSE(run.strict || run.scatter);
}

TEST(Arguments, ReadersTakeTheirOperandsAndJson) {
  EXPECT_TRUE(parsed<DevicesArguments>({"devices", "--json"}).json);
  EXPECT_FALSE(parsed<DevicesArguments>({"devices"}).json);
  EXPECT_EQ(parsed<DoctorArguments>({"doctor"}).program, Words{});
  EXPECT_EQ(parsed<DoctorArguments>({"doctor", "--", "p"}).program, Words{"p"});
  EXPECT_EQ(parsed<DoctorArguments>({"doctor", "--json", "p", "-x"}).program, (Words{"p", "-x"}));
  EXPECT_EQ(parsed<StatArguments>({"stat"}).pid, std::nullopt);
  EXPECT_EQ(parsed<StatArguments>({"stat", "--json", "4711"}).pid, 4711);
  EXPECT_EQ(parsed<LedgerArguments>({"ledger", "a", "b"}).files, (Words{"a", "b"}));
  EXPECT_EQ(parsed<ExplainArguments>({"explain", "5"}).what, "5");
}

TEST(Arguments, BadUsageIsOneLineThatNamesTheThingAndTheRemedy) {
  EXPECT_EQ(refused({}),
            "softhca: no command; one of run, devices, doctor, stat, ledger, explain; "
            "see softhca --help");
  EXPECT_EQ(refused({"rnu", "p"}),
            "softhca: rnu is not a command; one of run, devices, doctor, "
            "stat, ledger, explain; see softhca --help");
  EXPECT_EQ(refused({"run", "--stirct", "p"}),
            "softhca run: unknown option --stirct; see softhca run --help");
  const Words wrong[] = {{"run"},
                         {"run", "--"},
                         {"run", "--netdev"},
                         {"run", "--netdev", "", "p"},
                         {"run", "--pin", "glue", "p"},
                         {"run", ""},
                         {"ledger"},
                         {"explain"},
                         {"stat", "0"},
                         {"stat", "x"},
                         {"stat", "1", "2"},
                         {"devices", "x"},
                         {"doctor", "--strict"},
                         {"--frobnicate"}};
  for (const Words& words : wrong) {
    const std::string line = refused(words);
    EXPECT_TRUE(line.starts_with("softhca")) << line;
    EXPECT_TRUE(line.ends_with("--help")) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

TEST(Arguments, HelpAndVersionAreTexts) {
  EXPECT_TRUE(parsed<ShowText>({"--version"}).text.starts_with("softhca "));
  EXPECT_NE(parsed<ShowText>({"--help"}).text.find("doctor"), std::string::npos);
  for (const char* name : {"run", "devices", "doctor", "stat", "ledger", "explain"}) {
    const std::string text = parsed<ShowText>({name, "--help"}).text;
    EXPECT_NE(text.find("softhca"), std::string::npos) << name;
    EXPECT_NE(text.find("--help"), std::string::npos) << name;
  }
  EXPECT_NE(parsed<ShowText>({"run", "--help"}).text.find("--ledger"), std::string::npos);
}

TEST(Arguments, HelpFitsEightyColumns) {
  for (const char* name : {"run", "devices", "doctor", "stat", "ledger", "explain"}) {
    std::istringstream lines(parsed<ShowText>({name, "--help"}).text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace softhca::cli
