#include "driver/live/management_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "wire/packet.h"

namespace softhca::driver {
namespace {

using Listener = local::ServiceNames::Listener;
using Found = local::ServiceNames::Found;

constexpr wire::ServiceId kService{0x106'1c06};
constexpr wire::CommId kHere{0x123'45678};  // of block 0x123
constexpr wire::CommId kThere{0x777'00001};

std::vector<std::byte> packet_of(const wire::CmMessage& message) {
  wire::Headers headers;
  headers.bth.opcode = 0x64;
  headers.bth.dest_qpn = wire::kManagementQpn;
  std::vector<std::byte> packet(20 + wire::kMadBytes + wire::kIcrcBytes);
  wire::emit(headers, packet);
  std::ranges::copy(wire::emit_cm({.transaction = 1, .modifier = 0, .message = message}),
                    packet.begin() + 20);
  return packet;
}

// The service is looked for where requests come, and nowhere else.
Listener route(const wire::CmMessage& message) {
  return management_route(packet_of(message), [](wire::ServiceId service) {
    return service == kService ? Listener{Found::Block, 5} : Listener{Found::Unknown, {}};
  });
}
template <class Message>
Message answer() {
  Message message;
  message.local_id = kThere;
  message.remote_id = kHere;
  return message;
}

TEST(ManagementRoute, RequestsGoToWhoListens) {
  wire::CmReq req;
  req.local_id = kThere;
  req.service = kService;
  EXPECT_EQ(route(req).block, 5u);
  req.service = {1};
  EXPECT_EQ(route(req).found, Found::Unknown);
  wire::CmSidrReq sidr;
  sidr.request_id = kThere;
  sidr.service = kService;
  EXPECT_EQ(route(sidr).block, 5u);
}

TEST(ManagementRoute, AnswersGoToWhomTheyName) {
  wire::CmSidrRep resolved;
  resolved.request_id = kHere;
  for (const wire::CmMessage& message : std::initializer_list<wire::CmMessage>{
           answer<wire::CmMra>(), answer<wire::CmRej>(), answer<wire::CmRep>(),
           answer<wire::CmRtu>(), answer<wire::CmDreq>(), answer<wire::CmDrep>(), resolved}) {
    const Listener to = route(message);
    EXPECT_EQ(to.found, Found::Block) << message.index();
    EXPECT_EQ(to.block, 0x123u) << message.index();
  }
}

TEST(ManagementRoute, WhatNamesNobodyStaysHere) {
  EXPECT_EQ(route(wire::CmRej{}).found, Found::Nobody);
  std::vector<std::byte> other = packet_of(answer<wire::CmRep>());
  other[20 + 1] = std::byte{3};  // another class of management
  EXPECT_EQ(management_route(other, [](wire::ServiceId) { return Listener{}; }).found,
            Found::Nobody);
  other.resize(40);
  EXPECT_EQ(management_route(other, [](wire::ServiceId) { return Listener{}; }).found,
            Found::Nobody);
}

}  // namespace
}  // namespace softhca::driver
