// SysfsAnswer: what libibverbs.so.1 tells the preloaded library about a path. Plain memory of a
// fixed size, since who asks may not allocate.
//
// See also  abi/ibverbs/sysfs.cc, which answers; driver/sysfs_tree.h
#pragma once
#include <cstdint>

#include "driver/sysfs_tree.h"

namespace softhca::abi {

struct SysfsAnswer {
  driver::SysfsKind kind;  // File, Folder, Link or Elsewhere
  std::uint32_t text_bytes;
  char place[200];  // as SysfsFound has them; both end with a zero
  char text[7992];
};

// `path` is what lies behind the root; `follow` and `counts` as for SysfsTree::find(). 0, or an
// errno: ENOENT, ENOTDIR, ENOMEM, ENAMETOOLONG.
using AskSysfs = int(const char* path, int follow, int counts, SysfsAnswer* answer);
inline constexpr const char* kAskSysfs = "ibv_softhca_sysfs";

}  // namespace softhca::abi
