// WrongCases: each failure as a run of a transfer with one thing broken, and what it must come to.
//
// See also  sim/wrong.h (the door), sim/transfer.h (the stages)
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/iommu_table.h"
#include "sim/transfer.h"
#include "sim/wrong.h"

namespace softhca::sim {

// What a case must come to. `None` where nobody may refuse anything.
struct Outcome {
  std::optional<transport::Status> status = transport::Status::Success;  // nothing: no completion
  trace::ReasonId at_client = trace::ReasonId::None;
  trace::ReasonId at_server = trace::ReasonId::None;
  host::VtdReason iommu = host::VtdReason::None;  // recorded at the server
  bool bytes_arrive = false;                      // where the target's program looks for them
};

// What the case itself saw while it was played.
struct Account {
  std::string told;  // what happened, after all
  std::vector<Fact> facts;
  std::string operating_system;  // what that of the server noticed; empty: nothing
};

// Up to which step the transfer came as usual.
enum class Reach : std::uint8_t { ClientRegistration, ClientNic, ServerRegistration, ServerNic };

struct WrongCase {
  Wrong what;
  Reach reach{};
  Transfer::Tweak tweak{};  // of the machines; null: none
  void (*play)(Transfer&, Account&){};
  Outcome outcome;
  bool needs_remote_key = false;  // means nothing for a SEND
};

std::span<const WrongCase> wrong_cases();

}  // namespace softhca::sim
