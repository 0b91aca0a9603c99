// Pause: gives the processor up for a while, as a waiter on another process does.
#pragma once
#include "base/clock.h"

namespace softhca::os {

void pause_for(Duration duration);

}  // namespace softhca::os
