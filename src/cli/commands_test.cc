#include "cli/commands.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trace/reason.h"

namespace softhca::cli {
namespace {

struct Said {
  int status{};
  std::string out, err;
};

template <class Command, class Values>
Said said_by(Command command, const Values& values) {
  std::ostringstream out, err;
  Terminal terminal{out, err, {}};
  const int status = command(values, terminal);
  return {status, out.str(), err.str()};
}

Said explained(const std::string& what, bool json = false) {
  return said_by(command_explain, ExplainArguments{json, what});
}

TEST(CommandExplain, FindsAReasonByNumberAndByName) {
  const Said by_number = explained("5");
  EXPECT_EQ(by_number.status, 0);
  EXPECT_NE(by_number.out.find("out_of_bounds (5)"), std::string::npos);
  EXPECT_EQ(explained("0x5").out, by_number.out);
  EXPECT_EQ(explained("out_of_bounds").out, by_number.out);
}

TEST(CommandExplain, ExplainsEveryReasonWithRuleAndRemedyInEightyColumns) {
  for (const trace::ReasonInfo& row : trace::reasons()) {
    const Said said = explained(std::to_string(static_cast<unsigned>(row.id)));
    EXPECT_EQ(said.status, 0) << row.name;
    std::istringstream lines(said.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    const auto json = nlohmann::json::parse(explained(std::string(row.name), true).out);
    EXPECT_EQ(json["rule"], row.rule);
    EXPECT_EQ(json["remedy"], row.remedy);
  }
}

TEST(CommandExplain, ListsAll) {
  const auto json = nlohmann::json::parse(explained("list", true).out);
  EXPECT_EQ(json.size(), trace::reasons().size());
  EXPECT_NE(explained("list").out.find("udp_port_taken"), std::string::npos);
}

TEST(CommandExplain, SaysWhatItDoesNotKnow) {
  for (const char* what : {"9999", "0", "0x", "nonsense", "5x", "-5"}) {
    const Said said = explained(what);
    EXPECT_EQ(said.status, 1) << what;
    EXPECT_EQ(said.out, "");
    EXPECT_NE(said.err.find("explain list"), std::string::npos);
  }
}

TEST(CommandLedger, ReadsFilesAndSaysWhatItLeavesOut) {
  const auto file =
      std::filesystem::temp_directory_path() / ("softhca_ledger_" + std::to_string(::getpid()));
  std::ofstream(file) << R"({"pid":1,"program":"p","counters":{"doorbells":12345}})"
                      << "\n\n{\"pid\":2,\"prog";
  const Said said = said_by(command_ledger, LedgerArguments{false, {file.string()}});
  EXPECT_EQ(said.status, 0);
  EXPECT_NE(said.out.find("12,345"), std::string::npos);
  EXPECT_NE(said.err.find(":3: left out: not JSON"), std::string::npos) << said.err;

  std::ofstream(file, std::ios::trunc) << "";
  EXPECT_EQ(said_by(command_ledger, LedgerArguments{false, {file.string()}}).status, 1);
  std::filesystem::remove(file);
  const Said gone = said_by(command_ledger, LedgerArguments{false, {file.string()}});
  EXPECT_EQ(gone.status, 1);
  EXPECT_NE(gone.err.find("No such file"), std::string::npos);
}

RunArguments run_of(std::vector<std::string> program) {
  RunArguments run;
  run.program = std::move(program);
  return run;
}

TEST(CommandRun, RefusesAnInterfaceThatDoesNotExistAndListsThoseThatDo) {
  RunArguments run = run_of({"true"});
  run.netdev = "nosuchif0";
  const Said said = said_by(command_run, run);
  EXPECT_EQ(said.status, 2);
  EXPECT_NE(said.err.find("no interface nosuchif0"), std::string::npos) << said.err;
  EXPECT_NE(said.err.find("lo"), std::string::npos);
}

TEST(CommandRun, RefusesAFileInAFolderThatDoesNotExist) {
  for (auto member : {&RunArguments::pcap, &RunArguments::trace, &RunArguments::ledger}) {
    RunArguments run = run_of({"true"});
    run.*member = "/nonexistent/file";
    const Said said = said_by(command_run, run);
    EXPECT_EQ(said.status, 2);
    EXPECT_NE(said.err.find("no folder /nonexistent"), std::string::npos) << said.err;
    run.*member = "/";
    EXPECT_EQ(said_by(command_run, run).status, 2);
  }
}

TEST(CommandRun, SaysWhereItLookedForItsLibraries) {
  const Said said = said_by(command_run, run_of({"true"}));  // a test has none beside it
  EXPECT_EQ(said.status, 1);
  EXPECT_NE(said.err.find("/lib/softhca"), std::string::npos) << said.err;
}

}  // namespace
}  // namespace softhca::cli
