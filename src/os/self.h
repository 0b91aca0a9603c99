// This process: its name.
#pragma once
#include <string>

namespace softhca::os {

// comm: at most 15 characters, of the calling thread.
std::string own_name();

}  // namespace softhca::os
