#include "faults/plan_text.h"

#include <gtest/gtest.h>

namespace softhca::faults {
namespace {

// What is said about a plan; "" if it is fine.
std::string error_of(const std::string& text) {
  const auto plan = parse_plan(text, "/tmp/plan.toml");
  return plan ? "" : plan.error().text;
}
// About one fault that begins in line 1.
std::string fault_error(const std::string& keys) { return error_of("[[fault]]\n" + keys); }

Plan plan_of(const std::string& text) {
  const auto plan = parse_plan(text, "/tmp/plan.toml");
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().text);
  return plan ? *plan : Plan{};
}
Fault fault_of(const std::string& keys) {
  const Plan plan = plan_of("[[fault]]\n" + keys);
  return plan.faults.empty() ? Fault{} : plan.faults[0];
}

TEST(PlanText, ReadsAPlan) {
  const Plan plan = plan_of(
      "# how a bad cable looks\n"
      "seed = 7\n"
      "\n"
      "[[fault]]\n"
      "what = \"drop\"\n"
      "direction = \"send\"\n"
      "opcode = \"RC_WRITE_MIDDLE\"\n"
      "ratio = 0.25\n"
      "count = 3\n"
      "\n"
      "[[fault]]\n"
      "what = \"fail_work\"\n"
      "status = \"IBV_WC_RETRY_EXC_ERR\"\n"
      "operation = \"SEND\"\n"
      "wr_id = 0x10\n"
      "qp = 0x1234\n"
      "nth_qp = 3\n"
      "nth = 2\n");
  EXPECT_EQ(plan.name, "plan.toml");
  ASSERT_EQ(plan.faults.size(), 2u);
  const Fault& drop = plan.faults[0];
  EXPECT_EQ(drop.what, What::Drop);
  EXPECT_EQ(drop.line, 4u);
  EXPECT_EQ(drop.side, Side::Out);
  EXPECT_EQ(drop.opcodes, std::bitset<256>().set(0x07));
  EXPECT_EQ(drop.chance, 1u << 30);
  EXPECT_EQ(drop.count, 3u);
  const Fault& work = plan.faults[1];
  EXPECT_EQ(work.what, What::FailWork);
  EXPECT_EQ(work.line, 11u);
  EXPECT_EQ(work.status, 12);
  EXPECT_EQ(work.opcodes, std::bitset<256>().set(2));
  EXPECT_EQ(work.wr_id, 0x10u);
  EXPECT_EQ(work.qpn, wire::Qpn{0x1234});
  EXPECT_EQ(work.nth_qp, 3u);
  EXPECT_EQ(work.nth, 2u);
}

TEST(PlanText, KnowsEveryKind) {
  for (std::size_t i = 0; i < kWhats; ++i) {
    const auto what = static_cast<What>(i);
    std::string keys = "what = \"" + std::string(what_name(what)) + "\"\n";
    if (what == What::Delay || what == What::SlowDma) keys += "delay = \"1 ms\"\n";
    if (what == What::FailWork) keys += "status = \"GENERAL_ERR\"\n";
    EXPECT_EQ(fault_of(keys).what, what);
  }
}

TEST(PlanText, APacketsNameMayLeaveOutTheServiceAndAClassNamesMany) {
  const auto middle = fault_of("what = \"drop\"\nopcode = \"RDMA_WRITE_MIDDLE\"").opcodes;
  EXPECT_EQ(middle, std::bitset<256>().set(0x07).set(0x27).set(0xa7));  // RC, UC, XRC
  const auto acks = fault_of("what = \"drop\"\nclass = \"ACK\"").opcodes;
  EXPECT_EQ(acks, std::bitset<256>().set(0x11).set(0xb1));
}

TEST(PlanText, PsnsAreOneOrARange) {
  const auto one = fault_of("what = \"drop\"\npsn = 5").psn;
  ASSERT_TRUE(one);
  EXPECT_EQ(one->first, wire::Psn{5});
  EXPECT_EQ(one->last, wire::Psn{5});
  const auto range = fault_of("what = \"drop\"\npsn = [0xffffff, 1]").psn;
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, wire::Psn{0xff'ffff});
  EXPECT_EQ(range->last, wire::Psn{1});
}

TEST(PlanText, TimesHaveAUnit) {
  EXPECT_EQ(fault_of("what = \"delay\"\ndelay = \"5 ms\"").time, milliseconds(5));
  EXPECT_EQ(fault_of("what = \"delay\"\ndelay = \"1.5us\"").time, nanoseconds(1500));
  EXPECT_EQ(fault_of("what = \"sever\"\nduration = \"2 s\"").time, seconds(2));
  EXPECT_EQ(fault_of("what = \"sever\"").time, Duration{});
}

// Of what is counted, "the third" is one; "every tenth" begins with the tenth.
TEST(PlanText, WhatIsLeftOutFollowsFromWhatIsThere) {
  EXPECT_EQ(fault_of("what = \"drop\"\nnth = 3").count, 1u);
  EXPECT_EQ(fault_of("what = \"drop\"\nnth = 3\ncount = 5").count, 5u);
  EXPECT_EQ(fault_of("what = \"drop\"\nnth = 3\nratio = 0.5").count, Fault::kUnlimited);
  EXPECT_EQ(fault_of("what = \"drop\"").count, Fault::kUnlimited);
  EXPECT_EQ(fault_of("what = \"sever\"").count, 1u);
  EXPECT_EQ(fault_of("what = \"stall_responder\"\nevery = 100").count, Fault::kUnlimited);
  EXPECT_EQ(fault_of("what = \"drop\"\nevery = 10").nth, 10u);
  EXPECT_EQ(fault_of("what = \"drop\"\nevery = 10\nnth = 1").nth, 1u);
  EXPECT_EQ(fault_of("what = \"drop\"\nratio = 1").chance, std::nullopt);
  EXPECT_EQ(fault_of("what = \"drop\"\nqp = \"any\"").qpn, std::nullopt);
}

// So that a fault that is added, anywhere, changes nothing for the others.
TEST(PlanText, AFaultsStreamDependsOnItselfAndTheSeed) {
  const std::string drop = "[[fault]]\nwhat = \"drop\"\nratio = 0.1\n";
  const std::string delay = "[[fault]]\nwhat = \"delay\"\ndelay = \"1 ms\"\nratio = 0.1\n";
  const Plan alone = plan_of(drop);
  EXPECT_EQ(plan_of(delay + drop).faults[1].seed, alone.faults[0].seed);
  EXPECT_NE(plan_of("seed = 2\n" + drop).faults[0].seed, alone.faults[0].seed);
  const Plan twice = plan_of(drop + drop);
  EXPECT_EQ(twice.faults[0].seed, alone.faults[0].seed);
  EXPECT_NE(twice.faults[1].seed, twice.faults[0].seed);
}

TEST(PlanText, ErrorsNameFileLineAndRemedy) {
  EXPECT_EQ(error_of("[[fault]\n").substr(0, 26), "/tmp/plan.toml:1: not TOML");
  EXPECT_EQ(error_of(""),
            "/tmp/plan.toml:1: there is no fault in it; write [[fault]] and what = ... below it");
  EXPECT_EQ(error_of("\nfault = 3"),
            "/tmp/plan.toml:2: there is no fault in it; write [[fault]] and what = ... below it");
  EXPECT_EQ(error_of("fault = [3]"),
            "/tmp/plan.toml:1: fault must be a table; begin it with [[fault]]");
  EXPECT_EQ(error_of("\n\nsede = 1"),
            "/tmp/plan.toml:3: a plan has no key sede; it may have seed, and any number of "
            "[[fault]]");
  EXPECT_EQ(error_of("seed = -1"), "/tmp/plan.toml:1: seed must be a whole number from 0 on");
  EXPECT_EQ(fault_error("nth = 1"),
            "/tmp/plan.toml:1: what must be one of drop, duplicate, delay, reorder, corrupt, "
            "truncate, sever, fail_work, stall_responder, force_rnr, slow_dma, fail_translation");
  EXPECT_EQ(fault_error("what = \"dorp\"").substr(0, 38), "/tmp/plan.toml:2: what must be one of ");
  EXPECT_EQ(
      fault_error("what = \"drop\"\ndelay = \"1 ms\""),
      "/tmp/plan.toml:3: drop has no key delay; it may have what, direction, qp, nth_qp, opcode, "
      "class, psn, nth, every, ratio, count");
  EXPECT_EQ(fault_error("what = \"delay\""),
            "/tmp/plan.toml:1: delay needs delay; add delay = ...");
  EXPECT_EQ(fault_error("what = \"fail_work\""),
            "/tmp/plan.toml:1: fail_work needs status; add status = ...");
  std::string many;
  for (std::size_t i = 0; i <= kFaultsAtMost; ++i) many += "[[fault]]\nwhat = \"drop\"\n";
  EXPECT_EQ(error_of(many), "/tmp/plan.toml:1: 65 faults; a plan may have 64 at most");
}

TEST(PlanText, RefusesValuesThatMakeNoSense) {
  const auto of_drop = [](const std::string& key) {
    const std::string text = fault_error("what = \"drop\"\n" + key);
    EXPECT_EQ(text.substr(0, 18), "/tmp/plan.toml:3: ") << key;
    return text.substr(std::min<std::size_t>(18, text.size()));
  };
  EXPECT_EQ(of_drop("direction = \"up\""),
            "direction must be send or receive; leave it out for both");
  EXPECT_EQ(of_drop("direction = 1"), "direction must be send or receive, in quotes");
  EXPECT_EQ(of_drop("qp = \"all\""),
            "qp must be a queue pair's number, from 0 to 0xffffff, or \"any\"");
  EXPECT_EQ(of_drop("qp = 0x1000000"),
            "qp must be a queue pair's number, from 0 to 0xffffff, or \"any\"");
  EXPECT_EQ(
      of_drop("opcode = \"WRITE_MIDLE\""),
      "opcode must be a packet's name, as RC_WRITE_MIDDLE or WRITE_MIDDLE; docs/faults.md has "
      "all of them");
  EXPECT_EQ(of_drop("class = \"SENDS\""),
            "class must be one of SEND, WRITE, READ_REQUEST, READ_RESPONSE, ACK, ATOMIC, "
            "ATOMIC_ACK, ATOMIC_WRITE, CNP");
  EXPECT_EQ(of_drop("psn = -1"), "psn must be a number from 0 to 0xffffff, or [first, last]");
  EXPECT_EQ(of_drop("psn = [1, 2, 3]"),
            "psn must be a number from 0 to 0xffffff, or [first, last]");
  EXPECT_EQ(of_drop("nth = 0"), "nth must be a whole number above 0");
  EXPECT_EQ(of_drop("every = 1.5"), "every must be a whole number above 0");
  EXPECT_EQ(of_drop("count = \"3\""), "count must be a whole number above 0");
  EXPECT_EQ(of_drop("ratio = 5"), "ratio must be a number above 0 and at most 1");
  EXPECT_EQ(of_drop("ratio = 0.0"), "ratio must be a number above 0 and at most 1");
  EXPECT_EQ(of_drop("ratio = nan"), "ratio must be a number above 0 and at most 1");
}

// toml++ has assertions about some of them.
TEST(PlanText, WhatIsNotTomlIsAnErrorAndNoMore) {
  for (const char* bad : {"[", "[=", "[\n", "[\\", "a = {=", "a = [1", "a..b = 1", "a = \"\n"})
    EXPECT_EQ(error_of(std::string("seed = 1\n") + bad).substr(0, 27),
              "/tmp/plan.toml:2: not TOML:")
        << bad;
}

// toml++ is lost at some of them.
TEST(PlanText, LettersBeyondAsciiAreForCommentsAndQuotes) {
  for (const char* bad : {"\xef\xbb\xbe# no", "\xc3\xa9 = 1", "a = 1 \xc3\xa9", "'a' \xc3\xa9 = 1"})
    EXPECT_EQ(error_of(std::string("seed = 1\n") + bad).substr(0, 41),
              "/tmp/plan.toml:2: a letter beyond ASCII, ")
        << bad;
  EXPECT_TRUE(parse_plan("# caf\xc3\xa9\n[[fault]]\nwhat = \"drop\" # '\xc3\xa9\n", "plan.toml"));
}

TEST(PlanText, AnErrorIsOneLineWhateverAKeyIsCalled) {
  EXPECT_EQ(fault_error("what = \"drop\"\n\"a\\nb\" = 1").substr(0, 37),
            "/tmp/plan.toml:3: drop has no key a?b");
}

TEST(PlanText, RefusesValuesOfTheOtherKinds) {
  EXPECT_EQ(fault_error("what = \"delay\"\ndelay = \"5\""),
            "/tmp/plan.toml:3: delay must be a time above 0 and up to 3600 s, as \"5 ms\" (ns, us, "
            "ms, s)");
  for (const char* bad : {"\"5 min\"", "\"0 ms\"", "\"-1 ms\"", "\"2 h\"", "\"3601 s\"", "5"})
    EXPECT_NE(fault_error(std::string("what = \"delay\"\ndelay = ") + bad), "") << bad;
  EXPECT_EQ(fault_error("what = \"truncate\"\nbytes = 0"),
            "/tmp/plan.toml:3: bytes must be a whole number from 1 to 4096");
  EXPECT_EQ(fault_error("what = \"reorder\"\npassed_by = 65"),
            "/tmp/plan.toml:3: passed_by must be a whole number from 1 to 64");
  EXPECT_EQ(fault_error("what = \"fail_translation\"\naccess = \"send\""),
            "/tmp/plan.toml:3: access must be read or write, as the device sees it; leave it out "
            "for both");
  EXPECT_EQ(fault_error("what = \"fail_work\"\nstatus = \"IBV_WC_SUCCESS\"").substr(0, 61),
            "/tmp/plan.toml:3: status must be one of LOC_LEN_ERR, LOC_QP_O");
  EXPECT_EQ(fault_error("what = \"fail_work\"\nstatus = \"REM_OP_ERR\"\noperation = \"RECV\"")
                .substr(0, 57),
            "/tmp/plan.toml:4: operation must be one of RDMA_WRITE, RD");
  EXPECT_EQ(fault_error("what = \"drop\"\nevery = 2\nratio = 0.5"),
            "/tmp/plan.toml:1: every and ratio are two ways to choose; keep one of them");
  EXPECT_EQ(fault_error("what = \"drop\"\nopcode = \"RC_ACK\"\nclass = \"ACK\""),
            "/tmp/plan.toml:1: opcode and class are two ways to name packets; keep one of them");
}

TEST(PlanText, AFileThatIsNotThereIsAnError) {
  const auto plan = read_plan("/nonexistent/plan.toml");
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().text,
            "/nonexistent/plan.toml: cannot be read; check the name of the file and who may read "
            "it");
  const auto folder = read_plan("/tmp");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().text,
            "/tmp: cannot be read; check the name of the file and who may "
            "read it");
}

}  // namespace
}  // namespace softhca::faults
