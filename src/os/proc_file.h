// ProcFile: reads a file of procfs, whose size is not known before.
#pragma once
#include <optional>
#include <string>

namespace softhca::os {

// Nothing if it cannot be opened or read.
std::optional<std::string> read_proc_file(const char* path);

}  // namespace softhca::os
