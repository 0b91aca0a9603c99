// What is mapped where in this process, as the kernel says (/proc/self/maps).
//
// Threads  any; the answer is as old as the call
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/range.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

struct OwnMapping {
  Range<VirtSpace> range;
  bool readable{};
  bool writable{};
  bool executable{};
  bool shared{};
  std::uint64_t offset{};  // in its file
  FileIdentity file;       // inode 0: anonymous
  std::string name;        // "[heap]"; "" for most anonymous memory

  bool is_of(const FileIdentity& other) const {
    return file.inode == other.inode && file.device == other.device;
  }
};

// One line of it; nothing for what is none.
std::optional<OwnMapping> mapping_of_line(const char* line);

// The mappings that overlap the range, in order, as they are (not cut to it).
// FAILS WITH what the kernel says, for all of these: EMFILE, ENOENT (no procfs)
Result<std::vector<OwnMapping>, SystemError> own_mappings(Range<VirtSpace> range);
// The same, by reading all of the file, as kernels before 6.11 need it.
Result<std::vector<OwnMapping>, SystemError> read_mappings(Range<VirtSpace> range);
// Those of one file.
Result<std::vector<OwnMapping>, SystemError> own_mappings_of(const FileIdentity& file);

// How many threads this process has.
std::uint64_t own_thread_count();

}  // namespace softhca::os
