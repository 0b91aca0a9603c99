// Places of the tree: asking for one, and the anonymous files that programs get for it.
//
// Threads  any; no locks, so that a fork may come at any time
#pragma once
#include <cerrno>

#include "abi/sysfs/answer.h"
#include "abi/sysfs/path.h"

namespace softhca::abi {

// What is at a path behind the root. 0, or -1 with errno, as a call of the kernel; errno stays as
// it is on success. The first question loads the libibverbs.so.1 that lies beside this library.
// `counts`: a counter's text is wanted, which is not cheap.
int ask(const char* below, bool follow, SysfsAnswer& answer, bool counts = false);

// An anonymous file for a File or a Folder. -1 with errno
int open_answer(const SysfsAnswer& answer, bool close_on_exec);

// The place of a descriptor that open_answer() gave, in whatever process; errno stays.
struct Place {
  const char* of(int fd);  // null: another file
  char room[kPathRoom];
};

// Files of the kernel's sysfs say anew what is so whenever they are read from their start. So do
// ours: renews a file that was opened here if it is about to be read there.
void before_read(int fd);
void before_read_at(int fd, long offset);

// kernel(), or ours(below) if the path is of the tree: an absolute one, or one in an open folder of
// ours, which the kernel knows as a file: it says ENOTDIR.
template <class Kernel, class Ours>
auto in_folder(int folder, const char* path, Kernel&& kernel, Ours&& ours) {
  if (const char* const below = below_root(path)) return ours(below);
  const auto result = kernel();
  if (result >= 0 || errno != ENOTDIR || path == nullptr || *path == '/') return result;
  Place place;
  char below[kPathRoom];
  const char* const above = place.of(folder);
  return above != nullptr && join(below, above, path) ? ours(below) : result;
}

}  // namespace softhca::abi
