#include "abi/sysfs/originals.h"

#include <dlfcn.h>

#include <atomic>

namespace softhca::abi {
namespace {

// A structure of one kind has one layout, whatever the name of the function: so one hook does for
// open and open64, stat and stat64, readdir and readdir64.
static_assert(sizeof(off_t) == 8 && sizeof(struct stat) == sizeof(struct stat64) &&
              sizeof(dirent) == sizeof(dirent64));

constinit Originals g_originals{};
constinit std::atomic<bool> g_known{false};

template <class Function>
void look_up(Function*& to, const char* name) {
  to = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Two threads that come here at once store the same.
[[gnu::constructor]] void look_all_up() {
  Originals& o = g_originals;
  look_up(o.open, "open");
  look_up(o.openat, "openat");
  look_up(o.fopen, "fopen");
  look_up(o.read, "read");
  look_up(o.read_chk, "__read_chk");
  look_up(o.pread, "pread");
  look_up(o.pread_chk, "__pread_chk");
  look_up(o.stat, "stat");
  look_up(o.lstat, "lstat");
  look_up(o.fstat, "fstat");
  look_up(o.fstatat, "fstatat");
  look_up(o.statx, "statx");
  look_up(o.access, "access");
  look_up(o.eaccess, "eaccess");
  look_up(o.faccessat, "faccessat");
  look_up(o.readlink, "readlink");
  look_up(o.readlinkat, "readlinkat");
  look_up(o.realpath, "realpath");
  look_up(o.opendir, "opendir");
  look_up(o.fdopendir, "fdopendir");
  look_up(o.readdir, "readdir");
  look_up(o.readdir_r, "readdir_r");
  look_up(o.closedir, "closedir");
  look_up(o.dirfd, "dirfd");
  look_up(o.rewinddir, "rewinddir");
  look_up(o.telldir, "telldir");
  look_up(o.seekdir, "seekdir");
  look_up(o.scandir, "scandir");
  g_known.store(true, std::memory_order_release);
}

}  // namespace

const Originals& original() {
  if (!g_known.load(std::memory_order_acquire)) look_all_up();
  return g_originals;
}

}  // namespace softhca::abi
