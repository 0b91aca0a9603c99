// Opening and reading.
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>

#include "abi/stands_for.h"
#include "abi/sysfs/originals.h"
#include "abi/sysfs/place.h"

namespace softhca::abi {
namespace {

using driver::SysfsKind;

int refuse(int error) {
  errno = error;
  return -1;
}

int open_place(const char* below, int flags) {
  SysfsAnswer answer;
  if (ask(below, (flags & O_NOFOLLOW) == 0, answer, true) != 0) return -1;
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (answer.kind == SysfsKind::Elsewhere) return original().open(answer.text, flags & ~O_CREAT);
  if (answer.kind == SysfsKind::Link) return refuse(ELOOP);
  if (answer.kind == SysfsKind::Folder && writes) return refuse(EISDIR);
  if (answer.kind == SysfsKind::File && (flags & O_DIRECTORY) != 0) return refuse(ENOTDIR);
  if (writes) return refuse(EACCES);
  return open_answer(answer, (flags & O_CLOEXEC) != 0);
}

// The argument that only some flags bring along.
mode_t mode_of(int flags, va_list rest) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return creates ? va_arg(rest, mode_t) : 0;
}

}  // namespace

SOFTHCA_HOOK int hook_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  if (const char* const below = below_root(path)) return open_place(below, flags);
  return original().open(path, flags, mode);
}
SOFTHCA_STANDS_FOR(open, hook_open);
SOFTHCA_STANDS_FOR(open64, hook_open);
SOFTHCA_STANDS_FOR(__open, hook_open);
SOFTHCA_STANDS_FOR(__open64, hook_open);
SOFTHCA_STANDS_FOR(__open_2, hook_open);
SOFTHCA_STANDS_FOR(__open64_2, hook_open);

SOFTHCA_HOOK int hook_openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return in_folder(
      folder, path, [&] { return original().openat(folder, path, flags, mode); },
      [&](const char* below) { return open_place(below, flags); });
}
SOFTHCA_STANDS_FOR(openat, hook_openat);
SOFTHCA_STANDS_FOR(openat64, hook_openat);
SOFTHCA_STANDS_FOR(__openat_2, hook_openat);
SOFTHCA_STANDS_FOR(__openat64_2, hook_openat);

SOFTHCA_HOOK FILE* hook_fopen(const char* path, const char* mode) {
  const char* const below = below_root(path);
  if (below == nullptr) return original().fopen(path, mode);
  const bool writes = std::strpbrk(mode, "wa+") != nullptr;
  const bool stays = std::strchr(mode, 'e') == nullptr;
  const int fd = open_place(below, (writes ? O_RDWR : O_RDONLY) | (stays ? 0 : O_CLOEXEC));
  if (fd < 0) return nullptr;
  FILE* const file = ::fdopen(fd, mode);
  if (file == nullptr) ::close(fd);
  return file;
}
SOFTHCA_STANDS_FOR(fopen, hook_fopen);
SOFTHCA_STANDS_FOR(fopen64, hook_fopen);

SOFTHCA_HOOK ssize_t hook_read(int fd, void* to, std::size_t bytes) {
  before_read(fd);
  return original().read(fd, to, bytes);
}
SOFTHCA_STANDS_FOR(read, hook_read);
SOFTHCA_STANDS_FOR(__read, hook_read);

SOFTHCA_HOOK ssize_t hook_read_chk(int fd, void* to, std::size_t bytes, std::size_t room) {
  before_read(fd);
  return original().read_chk(fd, to, bytes, room);
}
SOFTHCA_STANDS_FOR(__read_chk, hook_read_chk);

SOFTHCA_HOOK ssize_t hook_pread(int fd, void* to, std::size_t bytes, off_t at) {
  before_read_at(fd, at);
  return original().pread(fd, to, bytes, at);
}
SOFTHCA_STANDS_FOR(pread, hook_pread);
SOFTHCA_STANDS_FOR(pread64, hook_pread);
SOFTHCA_STANDS_FOR(__pread64, hook_pread);

SOFTHCA_HOOK ssize_t hook_pread_chk(int fd, void* to, std::size_t bytes, off_t at,
                                    std::size_t room) {
  before_read_at(fd, at);
  return original().pread_chk(fd, to, bytes, at, room);
}
SOFTHCA_STANDS_FOR(__pread_chk, hook_pread_chk);
SOFTHCA_STANDS_FOR(__pread64_chk, hook_pread_chk);

}  // namespace softhca::abi
