// Story: what happened to one transfer, step by step, for people and for programs that draw.
//
// Every value in it was read from a run's tables or events; the sentences around them are chosen
// by what was read. Printing it is cli/'s task.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace softhca::sim {

struct Fact {
  std::string name;
  std::string value;
};

// Refused: the transfer got no further. Unnoticed: it went wrong, and nobody refused it.
enum class Mark : std::uint8_t { None, Refused, Unnoticed };

struct Step {
  std::string phase;                 // "Once, before any transfer"; equal in a row of steps
  std::string title;                 // "Virtual address"
  std::string host;                  // at whose machine: "client", "server"
  std::string told;                  // one or two sentences
  std::vector<Fact> facts;           // the values that carry the sentence
  std::vector<std::string> details;  // everything else, a line each
  bool is_brief = false;             // as before, at the other end: a line will do
  Mark mark = Mark::None;
};

// What it took, counted by the run itself: both ends, by RDMA and by sockets.
struct LedgerRow {
  std::string name;
  std::string unit;
  std::array<std::uint64_t, 2> rdma{};     // client, server
  std::array<std::uint64_t, 2> sockets{};  // 0 where it was not run
  bool is_detail = false;                  // part of another row
};

// What one party knows of a failure.
struct View {
  std::string who;
  std::string sees;
};

// A constant that a cost was made from.
struct Citation {
  std::string name;
  std::string value;
  std::string source;
};

// Many transfers, one after the other, by one of the two ways.
struct WaySummary {
  std::uint64_t transfers{};
  Duration cpu_busy;  // both hosts, per transfer, mean
  Duration latency_mean, latency_p50, latency_p99;
  std::uint64_t cpu_copy_bytes{};  // per transfer, both hosts
  std::uint64_t system_calls{};    // all of them
  std::uint64_t interrupts{};
};

struct Story {
  std::string headline;
  std::vector<std::string> setting;  // who and what, a line each
  std::vector<Step> steps;
  std::vector<LedgerRow> ledger;
  bool has_sockets = false;
  std::vector<View> views;       // of a failure
  std::string remedy;            // what a person should change
  std::vector<WaySummary> ways;  // RDMA, sockets; empty unless compared
  std::vector<Citation> citations;
  Duration took;  // from the posting to the completion
  std::uint64_t journal_hash{};
  bool came_out_right = false;  // the bytes are where they should be, or were rightly refused
};

}  // namespace softhca::sim
