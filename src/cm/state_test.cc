#include "cm/state.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace softhca::cm {
namespace {

template <class Message>
constexpr std::size_t index_of() {
  return wire::CmMessage(Message{}).index();
}

constexpr std::initializer_list<State> kAll = {
    State::ReqSent,  State::RepReceived, State::ReqReceived,  State::RepSent,  State::Established,
    State::DreqSent, State::SidrSent,    State::SidrReceived, State::TimeWait, State::Closed};

std::vector<State> states_that(Reaction wanted, std::size_t message) {
  std::vector<State> found;
  for (const State state : kAll)
    if (reaction(state, message) == wanted) found.push_back(state);
  return found;
}
using States = std::vector<State>;

// IBTA 12.9.5, 12.9.6: what each message is waited for in.
TEST(CmState, TakesAMessageOnlyWhereItMovesOn) {
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmReq>()), States{});
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmRep>()), States{State::ReqSent});
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmRtu>()), States{State::RepSent});
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmMra>()),
            (States{State::ReqSent, State::RepSent}));
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmRej>()),
            (States{State::ReqSent, State::RepReceived, State::ReqReceived, State::RepSent,
                    State::Established, State::DreqSent}));
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmDreq>()),
            (States{State::RepSent, State::Established, State::DreqSent}));
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmDrep>()), States{State::DreqSent});
  EXPECT_EQ(states_that(Reaction::Take, index_of<wire::CmSidrRep>()), States{State::SidrSent});
}

TEST(CmState, AnMraAnswersWhatCameTwiceWhileTheProgramThinks) {
  EXPECT_EQ(states_that(Reaction::Delay, index_of<wire::CmReq>()), States{State::ReqReceived});
  EXPECT_EQ(states_that(Reaction::Delay, index_of<wire::CmRep>()), States{State::RepReceived});
}

TEST(CmState, WhatIsClosedIsUnknown) {
  for (std::size_t message = 0; message < std::variant_size_v<wire::CmMessage>; ++message)
    EXPECT_EQ(states_that(Reaction::Unknown, message), States{State::Closed});
}

TEST(CmState, ADreqInTimeWaitIsAnsweredAgain) {
  EXPECT_EQ(states_that(Reaction::Answer, index_of<wire::CmDreq>()), States{State::TimeWait});
}

}  // namespace
}  // namespace softhca::cm
