// Listing folders. A folder that is open is a Stream of ours, which programs hold as a DIR: all
// that libc does with one is here, and gives what is not ours to libc.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "abi/stands_for.h"
#include "abi/sysfs/originals.h"
#include "abi/sysfs/place.h"

namespace softhca::abi {
namespace {

using driver::SysfsKind;

struct Stream {
  int fd;
  std::size_t at;  // as next_entry() counts
  dirent entry;
  SysfsAnswer answer;
};

// All that are open: no DIR of libc's is ever looked into.
constexpr std::size_t kMostStreams = 128;
constinit std::atomic<Stream*> g_streams[kMostStreams]{};
constinit std::atomic<unsigned> g_open{0};

Stream* ours(DIR* folder) {
  if (g_open.load(std::memory_order_relaxed) == 0) return nullptr;
  for (auto& slot : g_streams)
    if (Stream* const stream = slot.load(std::memory_order_acquire);
        stream != nullptr && static_cast<void*>(stream) == static_cast<void*>(folder))
      return stream;
  return nullptr;
}

// Takes the descriptor, if it succeeds.
DIR* start(int fd, const SysfsAnswer& answer) {
  auto* const stream = static_cast<Stream*>(std::malloc(sizeof(Stream)));
  if (stream == nullptr) return nullptr;
  new (stream) Stream{.fd = fd, .at = 0, .entry = {}, .answer = answer};
  for (auto& slot : g_streams) {
    Stream* none = nullptr;
    if (!slot.compare_exchange_strong(none, stream, std::memory_order_acq_rel)) continue;
    g_open.fetch_add(1, std::memory_order_relaxed);
    return reinterpret_cast<DIR*>(stream);
  }
  std::free(stream);
  errno = EMFILE;
  return nullptr;
}

// 0, or -1 with errno where it is no folder.
int ask_for_folder(const char* below, SysfsAnswer& answer) {
  if (ask(below, true, answer) != 0) return -1;
  if (answer.kind == SysfsKind::Folder || answer.kind == SysfsKind::Elsewhere) return 0;
  errno = ENOTDIR;
  return -1;
}

dirent* next(Stream& stream) {
  FolderEntry found{};
  if (!next_entry(stream.answer.text, stream.at, found)) return nullptr;
  dirent& entry = stream.entry;
  entry.d_type = found.kind == 'd' ? DT_DIR : found.kind == 'l' ? DT_LNK : DT_REG;
  entry.d_ino = number_of(stream.answer.place, found.name, found.name_bytes);
  entry.d_off = static_cast<off_t>(stream.at);
  entry.d_reclen = sizeof entry;
  std::memcpy(entry.d_name, found.name, found.name_bytes);
  entry.d_name[found.name_bytes] = '\0';
  return &entry;
}

}  // namespace

SOFTHCA_HOOK DIR* hook_opendir(const char* path) {
  const char* const below = below_root(path);
  if (below == nullptr) return original().opendir(path);
  SysfsAnswer answer;
  if (ask_for_folder(below, answer) != 0) return nullptr;
  if (answer.kind == SysfsKind::Elsewhere) return original().opendir(answer.text);
  const int fd = open_answer(answer, true);
  DIR* const folder = fd < 0 ? nullptr : start(fd, answer);
  if (folder == nullptr && fd >= 0) ::close(fd);
  return folder;
}
SOFTHCA_STANDS_FOR(opendir, hook_opendir);

SOFTHCA_HOOK DIR* hook_fdopendir(int fd) {
  DIR* const folder = original().fdopendir(fd);
  if (folder != nullptr || errno != ENOTDIR) return folder;
  Place place;
  SysfsAnswer answer;
  const char* const at = place.of(fd);
  return at != nullptr && ask_for_folder(at, answer) == 0 ? start(fd, answer) : nullptr;
}
SOFTHCA_STANDS_FOR(fdopendir, hook_fdopendir);

SOFTHCA_HOOK dirent* hook_readdir(DIR* folder) {
  if (Stream* const stream = ours(folder)) return next(*stream);
  return original().readdir(folder);
}
SOFTHCA_STANDS_FOR(readdir, hook_readdir);
SOFTHCA_STANDS_FOR(readdir64, hook_readdir);

SOFTHCA_HOOK int hook_readdir_r(DIR* folder, dirent* to, dirent** result) {
  Stream* const stream = ours(folder);
  if (stream == nullptr) return original().readdir_r(folder, to, result);
  const dirent* const found = next(*stream);
  if (found != nullptr) *to = *found;
  *result = found != nullptr ? to : nullptr;
  return 0;
}
SOFTHCA_STANDS_FOR(readdir_r, hook_readdir_r);
SOFTHCA_STANDS_FOR(readdir64_r, hook_readdir_r);

SOFTHCA_HOOK int hook_closedir(DIR* folder) {
  Stream* const stream = ours(folder);
  if (stream == nullptr) return original().closedir(folder);
  for (auto& slot : g_streams)
    if (slot.load(std::memory_order_relaxed) == stream)
      slot.store(nullptr, std::memory_order_release);
  g_open.fetch_sub(1, std::memory_order_relaxed);
  const int fd = stream->fd;
  std::free(stream);
  return ::close(fd);
}
SOFTHCA_STANDS_FOR(closedir, hook_closedir);

SOFTHCA_HOOK int hook_dirfd(DIR* folder) {
  if (const Stream* const stream = ours(folder)) return stream->fd;
  return original().dirfd(folder);
}
SOFTHCA_STANDS_FOR(dirfd, hook_dirfd);

SOFTHCA_HOOK void hook_rewinddir(DIR* folder) {
  if (Stream* const stream = ours(folder))
    stream->at = 0;
  else
    original().rewinddir(folder);
}
SOFTHCA_STANDS_FOR(rewinddir, hook_rewinddir);

SOFTHCA_HOOK long hook_telldir(DIR* folder) {
  if (const Stream* const stream = ours(folder)) return static_cast<long>(stream->at);
  return original().telldir(folder);
}
SOFTHCA_STANDS_FOR(telldir, hook_telldir);

SOFTHCA_HOOK void hook_seekdir(DIR* folder, long at) {
  Stream* const stream = ours(folder);
  if (stream == nullptr) return original().seekdir(folder, at);
  if (at >= 0 && static_cast<std::size_t>(at) <= stream->answer.text_bytes + std::size_t{2})
    stream->at = static_cast<std::size_t>(at);
}
SOFTHCA_STANDS_FOR(seekdir, hook_seekdir);

SOFTHCA_HOOK int hook_scandir(const char* path, dirent*** list, int (*wanted)(const dirent*),
                              int (*compare)(const dirent**, const dirent**)) {
  if (below_root(path) == nullptr) return original().scandir(path, list, wanted, compare);
  DIR* const folder = hook_opendir(path);
  if (folder == nullptr) return -1;
  dirent** all = nullptr;
  std::size_t count = 0;
  bool room = true;
  for (const dirent* entry; room && (entry = hook_readdir(folder)) != nullptr;) {
    if (wanted != nullptr && wanted(entry) == 0) continue;
    if (auto* const more = std::realloc(all, (count + 1) * sizeof *all))
      all = static_cast<dirent**>(more);
    else
      room = false;
    auto* const copy = room ? static_cast<dirent*>(std::malloc(sizeof(dirent))) : nullptr;
    room = copy != nullptr;
    if (!room) continue;
    *copy = *entry;
    all[count++] = copy;
  }
  hook_closedir(folder);
  if (!room) {
    while (count != 0) std::free(all[--count]);
    std::free(all);
    errno = ENOMEM;
    return -1;
  }
  if (compare != nullptr && count != 0)
    std::qsort(all, count, sizeof *all,
               reinterpret_cast<int (*)(const void*, const void*)>(compare));
  *list = all;
  return static_cast<int>(count);
}
SOFTHCA_STANDS_FOR(scandir, hook_scandir);
SOFTHCA_STANDS_FOR(scandir64, hook_scandir);

}  // namespace softhca::abi
