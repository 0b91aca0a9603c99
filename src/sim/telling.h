// Telling: the steps of a transfer as sentences and values, each read from its tables and events.
//
// One function for each title; where it stands in the story, and at which end, is the caller's.
#pragma once
#include <string>

#include "sim/story.h"
#include "sim/transfer.h"

namespace softhca::sim {

// From the program down to its device's memory: what was done before the transfer, at one end.
Step tell_application(const Transfer& transfer, const TransferEnd& end);
Step tell_allocation(const Transfer& transfer, const TransferEnd& end);
Step tell_virtual_address(const Transfer& transfer, const TransferEnd& end);
Step tell_mmu(const Transfer& transfer, const TransferEnd& end);
Step tell_frames(const Transfer& transfer, const TransferEnd& end);
Step tell_registration(const Transfer& transfer, const TransferEnd& end);
Step tell_pins(const Transfer& transfer, const TransferEnd& end);
Step tell_iommu(const Transfer& transfer, const TransferEnd& end);

// The transfer itself, at one end.
Step tell_nic(const Transfer& transfer, const TransferEnd& end);
Step tell_pcie(const Transfer& transfer, const TransferEnd& end);
Step tell_ethernet(const Transfer& transfer, const TransferEnd& end);
// What the server's program, and the client's, have of it in the end.
Step tell_arrival(const Transfer& transfer, bool moved_all);

// What the steps are made of.
Step step_at(const Transfer& transfer, const TransferEnd& end, std::string title,
             std::string phase);
// As details: the first `most` of the events, and how many more there were.
void add_events(Step& step, const Heard::Kind& events, std::size_t most);

}  // namespace softhca::sim
