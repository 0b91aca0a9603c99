// Groups that ids have joined.
#pragma once
#include "abi/rdmacm/id.h"

namespace softhca::abi {

// The event of a group that was joined, as the program reads it: the id's queue pair hears the
// group.
void describe_join(TakenEvent& event);
// Waits until the events about them are acknowledged.
void leave_all(Id& id);

}  // namespace softhca::abi
