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

// What a case must come to. `None` where nobody may refuse anything. In none of them do all bytes
// come to be where the target's program looks for them.
struct Outcome {
  std::optional<transport::Status> status = transport::Status::Success;  // nothing: no completion
  trace::ReasonId at_client = trace::ReasonId::None;
  trace::ReasonId at_server = trace::ReasonId::None;
  host::VtdReason iommu = host::VtdReason::None;  // recorded at the server
};

// What the case itself saw while it was played.
struct Account {
  std::string told;  // what happened, after all
  std::vector<Fact> facts;
  std::string client_kernel;  // what it noticed; empty: nothing
  std::string server_kernel;
};

// Up to which step the transfer came as usual.
enum class Reach : std::uint8_t { ClientRegistration, ClientNic, ServerNic };

struct WrongCase {
  Wrong what;
  Reach reach{};
  Transfer::Tweak tweak{};  // of the machines; null: none
  void (*play)(Transfer&, Account&){};
  Outcome outcome;
  std::string_view remedy;                // what a person should change
  std::uint64_t least_bytes = 64;         // below them it does not happen
  std::uint64_t most_bytes = UINT64_MAX;  // of more, so many are transferred
};

std::span<const WrongCase> wrong_cases();

}  // namespace softhca::sim
