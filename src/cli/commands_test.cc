#include "cli/commands.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "driver/table_memory.h"
#include "os/shared_memory.h"
#include "sim/wrong.h"
#include "trace/reason.h"
#include "trace/recording.h"

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

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

Said explained(const std::string& what, bool json = false) {
  return said_by(command_explain, ExplainArguments{json, what, 0});
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

TEST(CommandExplain, MakesThePageThatIsInTheDocumentation) {
  std::ifstream file(std::filesystem::path(SOFTHCA_SOURCE_DIR) / "docs/reasons.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(explained("page").out, page.str()) << "softhca explain page > docs/reasons.md";
}

TEST(CommandExplain, SaysThatAProcessHasNoDevice) {
  const Said said = said_by(command_explain, ExplainArguments{false, "", ::getpid()});
  EXPECT_EQ(said.status, 1);
  EXPECT_NE(said.err.find("no device open"), std::string::npos);
}

// A file of the test's own, which goes with it.
struct TestFile {
  explicit TestFile(std::string_view content)
      : path(std::filesystem::temp_directory_path() /
             ("softhca_explain_" + std::to_string(::getpid()) + ".7")) {
    std::ofstream(path, std::ios::binary) << content;
  }
  ~TestFile() { std::filesystem::remove(path); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  std::filesystem::path path;
};

std::string recording_with(const std::vector<trace::ToldLine>& lines, bool slow) {
  std::string file(trace::Recording::kBytes, '\0');
  trace::Recording recording(std::as_writable_bytes(std::span(file)),
                             [](std::uint64_t, std::uint64_t) { return true; });
  std::string("ib_write_bw").copy(recording.header().program, 15);
  for (const trace::ToldLine& line : lines)
    for (const trace::Event& event : trace::events_of(line, Time{} + milliseconds(3)))
      recording.append(event);
  const auto emit = [&](trace::EventKind kind, std::uint64_t field) {
    recording.append({.time_ps = 1,
                      .kind = kind,
                      .host = 0,
                      .object = 4118737,
                      .sequence = 0,
                      .fields = {field}});
  };
  if (slow) {
    emit(trace::EventKind::Retransmit, 12);
    emit(trace::EventKind::RnrWait, 7'000'000'000);
  }
  const std::uint64_t used = recording.close();
  recording.header().closed = 0;
  file.resize(used);
  return file;
}

TEST(CommandExplain, TellsTheCausesAndTheDelaysOfARecording) {
  const trace::ToldLine cause{trace::Telling::Cause, trace::ReasonId::KeyStale,
                              "queue pair 0x3ed8d1",
                              trace::reason_text({.id = trace::ReasonId::KeyStale})};
  const TestFile file(recording_with({cause, cause}, true));
  const Said said = explained(file.path);
  EXPECT_EQ(said.status, 0) << said.err;
  for (const char* told :
       {"ib_write_bw", "3.00 ms  queue pair 0x3ed8d1", "key_stale (reason 2, nic)",
        "Remedy: ", "The same again: 1 time", "0x3ed8d1", "12", "7.00 ms", "was not closed"})
    EXPECT_NE(said.out.find(told), std::string::npos) << told << "\n" << said.out;
  EXPECT_LE(longest_line(said.out), 80u) << said.out;
  const auto json = nlohmann::json::parse(explained(file.path, true).out);
  ASSERT_EQ(json["causes"].size(), 1u);
  EXPECT_EQ(json["causes"][0]["line"], cause.text);
  EXPECT_EQ(json["causes"][0]["reason"], 2);
  EXPECT_EQ(json["causes"][0]["repeated"], 1);
  EXPECT_EQ(json["slow"][0]["retransmits"], 12);
  EXPECT_EQ(json["slow"][0]["rnr_wait_ps"], 7'000'000'000);
  EXPECT_FALSE(json["closed"]);
}

TEST(CommandExplain, TellsAWarningFromARefusal) {
  const TestFile file(recording_with(
      {{trace::Telling::Warning, trace::ReasonId::PeerSilent, "queue pair 7", "peer_silent"}},
      false));
  const Said said = explained(file.path);
  EXPECT_NE(said.out.find("queue pair 7 (warning)"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("Nothing was refused."), std::string::npos) << said.out;
}

TEST(CommandExplain, SaysThatARecordingHasNothingToExplain) {
  const TestFile file(recording_with({}, false));
  const Said said = explained(file.path);
  EXPECT_EQ(said.status, 0);
  EXPECT_NE(said.out.find("Nothing was refused."), std::string::npos);
  EXPECT_NE(said.out.find("Nothing was sent again"), std::string::npos);
}

TEST(CommandExplain, SaysInOneLineWhatIsNoRecording) {
  const std::string good = recording_with({}, true);
  std::string other = good;
  other[sizeof trace::RecordingHeader::magic] = 77;
  const std::pair<std::string, const char*> bad[] = {
      {"hello\n", "not a recording"},
      {"", "not a recording"},
      {good.substr(0, 5000), "cut off"},
      {other, "another version"},
      {"SOFTHCA-JOURNAL 1\nclock", "another version"}};
  for (const auto& [content, told] : bad) {
    const TestFile file(content);
    const Said said = explained(file.path);
    EXPECT_EQ(said.status, 2) << told;
    EXPECT_EQ(said.out, "");
    EXPECT_NE(said.err.find(told), std::string::npos) << said.err;
    EXPECT_EQ(std::ranges::count(said.err, '\n'), 1);
  }
  EXPECT_EQ(explained("/").status, 2);
}

TEST(CommandExplain, NamesTheRecordingsThatARunWrote) {
  const TestFile file("");
  const std::string name = file.path.string().substr(0, file.path.string().size() - 2);
  const Said said = explained(name);
  EXPECT_EQ(said.status, 1);
  EXPECT_NE(said.err.find(file.path.string()), std::string::npos) << said.err;
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

// Tables as a device publishes them, in this process.
struct PublishedTables {
  PublishedTables()
      : memory(std::move(
            *os::SharedMemory::create("softhca:softhca7", driver::TableMemory::bytes_needed()))),
        tables(memory.bytes()) {
    tables.header().pid = ::getpid();
    std::string("softhca7").copy(tables.header().device, 16);
    tables.tables().qps[3].qpn = 0x4003;
  }
  trace::QpCounters& counters() { return tables.tables().qps[3].counters; }
  Said stat(bool json) { return said_by(command_stat, StatArguments{json, ::getpid()}); }

  os::SharedMemory memory;
  driver::TableMemory tables;
};

TEST(CommandStat, TellsForEachQueuePairWhatItMovedAndWhatTroubleItHad) {
  PublishedTables published;
  using enum trace::QpCounter;
  published.counters().add(PacketsSent, 12'345);
  published.counters().add(BytesReceived, 6'789'000);
  EXPECT_NE(published.stat(false).out.find("nothing was sent again"), std::string::npos);
  published.counters().add(Retransmits, 17);
  published.counters().add(RemoteAccessNaksReceived);
  published.counters().add(RnrWaitPs, milliseconds(3));
  const Said said = published.stat(false);
  EXPECT_EQ(said.status, 0) << said.err;
  for (const char* told : {"0x004003", "12,345", "6,789,000", "retransmits", "17",
                           "remote_access_naks_received", "rnr_wait_ps", "3.00 ms"})
    EXPECT_NE(said.out.find(told), std::string::npos) << told << "\n" << said.out;
  EXPECT_EQ(said.out.find("duplicates"), std::string::npos) << "none";
  EXPECT_LE(longest_line(said.out), 80u) << said.out;
}

TEST(CommandStat, TellsMachinesEveryCounterOfEachQueuePair) {
  PublishedTables published;
  for (const trace::QpCounterInfo& row : trace::kQpCounters)
    published.counters().add(row.counter, 100 + static_cast<std::uint64_t>(row.counter));
  const auto json = nlohmann::json::parse(published.stat(true).out);
  ASSERT_EQ(json.size(), 1u);
  const auto& counters = json[0]["queue_pairs"][0]["counters"];
  for (const trace::QpCounterInfo& row : trace::kQpCounters)
    EXPECT_EQ(counters[std::string(row.name)], 100 + static_cast<int>(row.counter)) << row.name;
  EXPECT_TRUE(json[0]["counters"].contains("unknown_qpn"));
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

TEST(CommandJourney, FitsEightyColumnsAndTwoScreensWhateverItTells) {
  constexpr std::ptrdiff_t kTwoScreens = 2 * 60;
  for (const auto operation : {sim::Operation::Write, sim::Operation::Read, sim::Operation::Send})
    for (const std::uint64_t bytes : {1u, 10'000u, 16u << 20}) {
      JourneyArguments journey;
      journey.settings.operation = operation;
      journey.settings.bytes = bytes;
      const Said said = said_by(command_journey, journey);
      EXPECT_EQ(said.status, 0) << said.err;
      EXPECT_LE(longest_line(said.out), 80u);
      EXPECT_LE(std::ranges::count(said.out, '\n'), kTwoScreens);
      journey.steps = true;
      EXPECT_LE(longest_line(said_by(command_journey, journey).out), 80u);
    }
}

TEST(CommandJourney, UsesColourAndRulesOnlyOnATerminal) {
  JourneyArguments journey;
  const auto is_plain = [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); };
  EXPECT_TRUE(std::ranges::all_of(said_by(command_journey, journey).out, is_plain));
  std::ostringstream out, err;
  Terminal terminal{out, err, {.terminal = true, .columns = 80}};
  EXPECT_EQ(command_journey(journey, terminal), 0);
  EXPECT_FALSE(std::ranges::all_of(out.str(), is_plain));
}

TEST(CommandJourney, TellsMachinesTheSame) {
  JourneyArguments journey;
  journey.json = true;
  journey.settings.bytes = 30'000;
  journey.settings.sockets = true;
  journey.settings.compare = 3;
  const auto json = nlohmann::json::parse(said_by(command_journey, journey).out);
  EXPECT_EQ(json["steps"].size(), 22u);
  EXPECT_EQ(json["steps"][3]["title"], "MMU");
  const auto story = sim::tell_journey(journey.settings);
  ASSERT_TRUE(story);
  for (std::size_t i = 0; i < story->steps.size(); ++i)
    EXPECT_EQ(json["steps"][i]["facts"].size(), story->steps[i].facts.size()) << i;
  EXPECT_EQ(json["compared"]["rdma"]["transfers"], 3);
  EXPECT_TRUE(json["came_out_right"]);
  for (const auto& row : json["ledger"])
    if (row["name"] == "bytes copied by a CPU") {
      EXPECT_EQ(row["rdma"]["client"], 0);
      EXPECT_EQ(row["sockets"]["client"], 30'000);
    }
}

TEST(CommandJourney, ListsWhatCanGoWrongAndTellsEachInEightyColumns) {
  JourneyArguments list;
  list.list_wrong = true;
  const Said listed = said_by(command_journey, list);
  EXPECT_EQ(listed.status, 0);
  EXPECT_LE(longest_line(listed.out), 80u);
  for (const sim::Wrong& wrong : sim::wrongs()) {
    EXPECT_NE(listed.out.find(wrong.name), std::string::npos);
    JourneyArguments journey;
    journey.settings.wrong = wrong.name;
    const Said said = said_by(command_journey, journey);
    EXPECT_EQ(said.status, 0) << wrong.name << ": " << said.err;
    EXPECT_LE(longest_line(said.out), 80u) << wrong.name;
    EXPECT_NE(said.out.find("What each of them sees"), std::string::npos);
  }
}

TEST(CommandJourney, SaysInOneLineWhatCannotBeTold) {
  JourneyArguments journey;
  journey.settings.wrong = "gremlins";
  const Said said = said_by(command_journey, journey);
  EXPECT_EQ(said.status, 2);
  EXPECT_EQ(std::ranges::count(said.err, '\n'), 1);
  EXPECT_NE(said.err.find("--wrong list"), std::string::npos) << said.err;
}

}  // namespace
}  // namespace softhca::cli
