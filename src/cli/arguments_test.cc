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
  const auto run =
      parsed<RunArguments>({"run",     "--netdev",    "eth0",     "--strict",  "--pcap=a.pcap",
                            "--trace", "a.trace",     "--ledger", "a.ledger",  "--faults",
                            "a.toml",  "--pin",       "mlock",    "--scatter", "--sysfs",
                            "--",      "ib_send_lat", "-x",       "0",         "--help"});
  EXPECT_EQ(run.netdev, "eth0");
  EXPECT_TRUE(run.strict);
  EXPECT_TRUE(run.scatter && run.sysfs);
  EXPECT_EQ(run.pcap, "a.pcap");
  EXPECT_EQ(run.trace, "a.trace");
  EXPECT_EQ(run.ledger, "a.ledger");
  EXPECT_EQ(run.faults, "a.toml");
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
  EXPECT_FALSE(run.strict || run.scatter || run.sysfs);
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

TEST(Arguments, AJourneyTakesSizesAndChoicesByName) {
  const auto journey = parsed<JourneyArguments>(
      {"journey", "--op",    "read", "--bytes",   "64k",      "--offset",
       "12",      "--pages", "2m",   "--iommu",   "deferred", "--memory",
       "gpu",     "--acs",   "off",  "--hosts",   "4",        "--fragmentation",
       "100",     "--seed",  "9",    "--sockets", "--steps"});
  const sim::JourneySettings& settings = journey.settings;
  EXPECT_EQ(settings.operation, sim::Operation::Read);
  EXPECT_EQ(settings.bytes, 65536u);
  EXPECT_EQ(settings.offset, 12u);
  EXPECT_EQ(settings.page_bytes, 2u << 20);
  EXPECT_EQ(settings.iommu, sim::IommuChoice::Deferred);
  EXPECT_TRUE(settings.gpu);
  EXPECT_FALSE(settings.acs_redirect);
  EXPECT_EQ(settings.hosts, 4u);
  EXPECT_EQ(settings.fragmentation, 100u);
  EXPECT_EQ(settings.seed, 9u);
  EXPECT_TRUE(settings.sockets);
  EXPECT_TRUE(journey.steps);
  EXPECT_TRUE(parsed<JourneyArguments>({"journey", "--wrong", "list"}).list_wrong);
  EXPECT_EQ(parsed<JourneyArguments>({"journey", "--compare"}).settings.compare, 1000u);
}

TEST(Arguments, BadUsageIsOneLineThatNamesTheThingAndTheRemedy) {
  EXPECT_EQ(refused({}),
            "softhca: no command; one of run, devices, doctor, stat, ledger, explain, journey; "
            "see softhca --help");
  EXPECT_EQ(refused({"rnu", "p"}),
            "softhca: rnu is not a command; one of run, devices, doctor, "
            "stat, ledger, explain, journey; see softhca --help");
  EXPECT_EQ(refused({"run", "--stirct", "p"}),
            "softhca run: unknown option --stirct; see softhca run --help");
  const Words wrong[] = {{"run"},
                         {"run", "--"},
                         {"run", "--netdev"},
                         {"run", "--netdev", "", "p"},
                         {"run", "--pin", "glue", "p"},
                         {"run", "--ecn", "loud", "p"},
                         {"run", "--local", "somehow", "p"},
                         {"run", "--engine", "steam", "p"},
                         {"run", "--memory", "frame", "p"},
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

TEST(Arguments, AJourneyRefusesWhatDoesNotExist) {
  for (const Words& words :
       {Words{"journey", "--op", "atomic"}, Words{"journey", "--bytes", "0"},
        Words{"journey", "--bytes", "2g"}, Words{"journey", "--offset", "4096"},
        Words{"journey", "--pages", "8k"}, Words{"journey", "--hosts", "1"},
        Words{"journey", "--fragmentation", "101"}, Words{"journey", "--bytes", "-1"}}) {
    const std::string line = refused(words);
    EXPECT_NE(line.find(words[1]), std::string::npos) << line;
    EXPECT_NE(line.find("see softhca journey --help"), std::string::npos) << line;
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
