// Asking about files without opening them.
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>

#include "abi/stands_for.h"
#include "abi/sysfs/originals.h"
#include "abi/sysfs/place.h"

namespace softhca::abi {
namespace {

using driver::SysfsKind;

constexpr unsigned kFileBytes = 4096;  // what sysfs says of each of its files
constexpr unsigned kBlockBytes = 512;

mode_t mode_of(SysfsKind kind) {
  if (kind == SysfsKind::Folder) return S_IFDIR | 0755;
  return kind == SysfsKind::Link ? S_IFLNK | 0777 : S_IFREG | 0444;
}

std::uint32_t size_of(const SysfsAnswer& answer) {
  if (answer.kind == SysfsKind::Folder) return 0;
  return answer.kind == SysfsKind::Link ? answer.text_bytes : kFileBytes;
}

void describe(const SysfsAnswer& answer, struct stat& to) {
  to = {};
  to.st_ino = number_of(answer.place);
  to.st_mode = mode_of(answer.kind);
  to.st_nlink = answer.kind == SysfsKind::Folder ? 2 : 1;
  to.st_size = size_of(answer);
  to.st_blksize = kFileBytes;
  to.st_blocks = size_of(answer) / kBlockBytes;  // else cp(1) takes it for a sparse file
}

void describe(const SysfsAnswer& answer, struct statx& to) {
  to = {};
  to.stx_mask = STATX_BASIC_STATS;
  to.stx_ino = number_of(answer.place);
  to.stx_mode = static_cast<std::uint16_t>(mode_of(answer.kind));
  to.stx_nlink = answer.kind == SysfsKind::Folder ? 2 : 1;
  to.stx_size = size_of(answer);
  to.stx_blksize = kFileBytes;
  to.stx_blocks = size_of(answer) / kBlockBytes;
}

// 0 or -1; kernel(path) where the path leads out of the tree.
template <class Stat, class Kernel>
int stat_place(const char* below, bool follow, Stat* to, Kernel&& kernel) {
  SysfsAnswer answer;
  if (ask(below, follow, answer) != 0) return -1;
  if (answer.kind == SysfsKind::Elsewhere) return kernel(answer.text);
  describe(answer, *to);
  return 0;
}

// What the kernel said of a descriptor, put right if that is ours: to it that is a file without a
// name.
template <class Stat>
void put_right(int fd, mode_t mode, std::uint64_t links, Stat& to) {
  if (!S_ISREG(mode) || links != 0) return;
  const int before = errno;
  Place place;
  SysfsAnswer answer;
  if (const char* const at = place.of(fd); at != nullptr && ask(at, false, answer) == 0)
    describe(answer, to);
  errno = before;
}

bool is_descriptor_only(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (path == nullptr || *path == '\0');
}

int access_place(const char* below, int mode, int flags) {
  SysfsAnswer answer;
  if (ask(below, (flags & AT_SYMLINK_NOFOLLOW) == 0, answer) != 0) return -1;
  if (answer.kind == SysfsKind::Elsewhere)
    return original().faccessat(AT_FDCWD, answer.text, mode, flags);
  if ((mode & W_OK) == 0 && ((mode & X_OK) == 0 || answer.kind != SysfsKind::File)) return 0;
  errno = EACCES;
  return -1;
}

ssize_t readlink_place(const char* below, char* to, std::size_t room) {
  SysfsAnswer answer;
  if (ask(below, false, answer) != 0) return -1;
  if (answer.kind == SysfsKind::Elsewhere) return original().readlink(answer.text, to, room);
  if (answer.kind != SysfsKind::Link) {
    errno = EINVAL;
    return -1;
  }
  const std::size_t bytes = answer.text_bytes < room ? answer.text_bytes : room;
  std::memcpy(to, answer.text, bytes);
  return static_cast<ssize_t>(bytes);
}

}  // namespace

SOFTHCA_HOOK int hook_stat(const char* path, struct stat* to) {
  if (const char* const below = below_root(path))
    return stat_place(below, true, to, [&](const char* out) { return original().stat(out, to); });
  return original().stat(path, to);
}
SOFTHCA_STANDS_FOR(stat, hook_stat);
SOFTHCA_STANDS_FOR(stat64, hook_stat);

SOFTHCA_HOOK int hook_lstat(const char* path, struct stat* to) {
  if (const char* const below = below_root(path))
    return stat_place(below, false, to, [&](const char* out) { return original().lstat(out, to); });
  return original().lstat(path, to);
}
SOFTHCA_STANDS_FOR(lstat, hook_lstat);
SOFTHCA_STANDS_FOR(lstat64, hook_lstat);

SOFTHCA_HOOK int hook_fstat(int fd, struct stat* to) {
  const int result = original().fstat(fd, to);
  if (result == 0) put_right(fd, to->st_mode, to->st_nlink, *to);
  return result;
}
SOFTHCA_STANDS_FOR(fstat, hook_fstat);
SOFTHCA_STANDS_FOR(fstat64, hook_fstat);

SOFTHCA_HOOK int hook_fstatat(int folder, const char* path, struct stat* to, int flags) {
  const int result = in_folder(
      folder, path, [&] { return original().fstatat(folder, path, to, flags); },
      [&](const char* below) {
        return stat_place(below, (flags & AT_SYMLINK_NOFOLLOW) == 0, to, [&](const char* out) {
          return original().fstatat(AT_FDCWD, out, to, flags);
        });
      });
  if (result == 0 && is_descriptor_only(path, flags))
    put_right(folder, to->st_mode, to->st_nlink, *to);
  return result;
}
SOFTHCA_STANDS_FOR(fstatat, hook_fstatat);
SOFTHCA_STANDS_FOR(fstatat64, hook_fstatat);

SOFTHCA_HOOK int hook_statx(int folder, const char* path, int flags, unsigned mask,
                            struct statx* to) {
  const int result = in_folder(
      folder, path, [&] { return original().statx(folder, path, flags, mask, to); },
      [&](const char* below) {
        return stat_place(below, (flags & AT_SYMLINK_NOFOLLOW) == 0, to, [&](const char* out) {
          return original().statx(AT_FDCWD, out, flags, mask, to);
        });
      });
  if (result == 0 && is_descriptor_only(path, flags))
    put_right(folder, to->stx_mode, to->stx_nlink, *to);
  return result;
}
SOFTHCA_STANDS_FOR(statx, hook_statx);

// What programs that were built with a glibc before 2.33 call.
SOFTHCA_HOOK int hook_xstat(int, const char* path, struct stat* to) { return hook_stat(path, to); }
SOFTHCA_STANDS_FOR(__xstat, hook_xstat);
SOFTHCA_STANDS_FOR(__xstat64, hook_xstat);
SOFTHCA_HOOK int hook_lxstat(int, const char* path, struct stat* to) {
  return hook_lstat(path, to);
}
SOFTHCA_STANDS_FOR(__lxstat, hook_lxstat);
SOFTHCA_STANDS_FOR(__lxstat64, hook_lxstat);
SOFTHCA_HOOK int hook_fxstat(int, int fd, struct stat* to) { return hook_fstat(fd, to); }
SOFTHCA_STANDS_FOR(__fxstat, hook_fxstat);
SOFTHCA_STANDS_FOR(__fxstat64, hook_fxstat);
SOFTHCA_HOOK int hook_fxstatat(int, int folder, const char* path, struct stat* to, int flags) {
  return hook_fstatat(folder, path, to, flags);
}
SOFTHCA_STANDS_FOR(__fxstatat, hook_fxstatat);
SOFTHCA_STANDS_FOR(__fxstatat64, hook_fxstatat);

SOFTHCA_HOOK int hook_access(const char* path, int mode) {
  if (const char* const below = below_root(path)) return access_place(below, mode, 0);
  return original().access(path, mode);
}
SOFTHCA_STANDS_FOR(access, hook_access);

SOFTHCA_HOOK int hook_eaccess(const char* path, int mode) {
  if (const char* const below = below_root(path)) return access_place(below, mode, 0);
  return original().eaccess(path, mode);
}
SOFTHCA_STANDS_FOR(eaccess, hook_eaccess);
SOFTHCA_STANDS_FOR(euidaccess, hook_eaccess);

SOFTHCA_HOOK int hook_faccessat(int folder, const char* path, int mode, int flags) {
  return in_folder(
      folder, path, [&] { return original().faccessat(folder, path, mode, flags); },
      [&](const char* below) { return access_place(below, mode, flags); });
}
SOFTHCA_STANDS_FOR(faccessat, hook_faccessat);

SOFTHCA_HOOK ssize_t hook_readlink(const char* path, char* to, std::size_t room) {
  if (const char* const below = below_root(path)) return readlink_place(below, to, room);
  return original().readlink(path, to, room);
}
SOFTHCA_STANDS_FOR(readlink, hook_readlink);
SOFTHCA_HOOK ssize_t hook_readlink_chk(const char* path, char* to, std::size_t bytes,
                                       std::size_t room) {
  return hook_readlink(path, to, bytes < room ? bytes : room);
}
SOFTHCA_STANDS_FOR(__readlink_chk, hook_readlink_chk);

SOFTHCA_HOOK ssize_t hook_readlinkat(int folder, const char* path, char* to, std::size_t room) {
  return in_folder(
      folder, path, [&] { return original().readlinkat(folder, path, to, room); },
      [&](const char* below) { return readlink_place(below, to, room); });
}
SOFTHCA_STANDS_FOR(readlinkat, hook_readlinkat);
SOFTHCA_HOOK ssize_t hook_readlinkat_chk(int folder, const char* path, char* to, std::size_t bytes,
                                         std::size_t room) {
  return hook_readlinkat(folder, path, to, bytes < room ? bytes : room);
}
SOFTHCA_STANDS_FOR(__readlinkat_chk, hook_readlinkat_chk);

SOFTHCA_HOOK char* hook_realpath(const char* path, char* to) {
  const char* const below = below_root(path);
  if (below == nullptr) return original().realpath(path, to);
  SysfsAnswer answer;
  if (ask(below, true, answer) != 0) return nullptr;
  if (answer.kind == SysfsKind::Elsewhere) return original().realpath(answer.text, to);
  constexpr std::string_view kRoot = driver::kSysfsRoot;
  const std::size_t place_bytes = std::strlen(answer.place);
  if (to == nullptr) to = static_cast<char*>(std::malloc(kRoot.size() + place_bytes + 2));
  if (to == nullptr) return nullptr;
  std::memcpy(to, kRoot.data(), kRoot.size());
  char* const behind = to + kRoot.size();
  *behind = place_bytes == 0 ? '\0' : '/';
  if (place_bytes != 0) std::memcpy(behind + 1, answer.place, place_bytes + 1);
  return to;
}
SOFTHCA_STANDS_FOR(realpath, hook_realpath);
SOFTHCA_HOOK char* hook_realpath_chk(const char* path, char* to, std::size_t) {
  return hook_realpath(path, to);
}
SOFTHCA_STANDS_FOR(__realpath_chk, hook_realpath_chk);
SOFTHCA_HOOK char* hook_canonical(const char* path) { return hook_realpath(path, nullptr); }
SOFTHCA_STANDS_FOR(canonicalize_file_name, hook_canonical);

}  // namespace softhca::abi
