#include "abi/sysfs/place.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

#include "abi/sysfs/originals.h"
#include "os/shared_memory.h"

namespace softhca::abi {
namespace {

constinit std::atomic<AskSysfs*> g_ask{nullptr};

// Descriptors that may be files of ours, a bit for each: most reads are of others, and pay a test.
// A bit outlives its file, so whoever believes it looks at the descriptor.
constexpr std::size_t kWatched = 1024;
constinit std::atomic<std::uint64_t> g_watched[kWatched / 64]{};

std::atomic<std::uint64_t>* watched(int fd) {
  const auto number = static_cast<unsigned>(fd);
  return number < kWatched ? &g_watched[number / 64] : nullptr;
}
std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (static_cast<unsigned>(fd) % 64); }

AskSysfs* load_library() {
  Dl_info own{};
  char path[kPathRoom];
  if (::dladdr(&g_ask, &own) == 0 || own.dli_fname == nullptr) return nullptr;
  const char* const slash = std::strrchr(own.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash - own.dli_fname) + 1;
  const int length = std::snprintf(path, sizeof path, "%.*slibibverbs.so.1", folder, own.dli_fname);
  if (static_cast<std::size_t>(length) >= sizeof path) return nullptr;
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<AskSysfs*>(::dlsym(library, kAskSysfs));
}

bool write_text(int fd, const SysfsAnswer& answer) {
  return ::pwrite(fd, answer.text, answer.text_bytes, 0) ==
             static_cast<ssize_t>(answer.text_bytes) &&
         ::ftruncate(fd, answer.text_bytes) == 0;
}

void renew(int fd) {
  const int before = errno;
  Place place;
  SysfsAnswer answer;
  if (const char* const at = place.of(fd); at == nullptr)
    watched(fd)->fetch_and(~bit_of(fd), std::memory_order_relaxed);
  else if (ask(at, false, answer, true) == 0 && answer.kind == driver::SysfsKind::File)
    write_text(fd, answer);
  errno = before;
}

bool is_watched(int fd) {
  const auto* const word = watched(fd);
  return word != nullptr && (word->load(std::memory_order_relaxed) & bit_of(fd)) != 0;
}

}  // namespace

int ask(const char* below, bool follow, SysfsAnswer& answer, bool counts) {
  const int before = errno;
  AskSysfs* library = g_ask.load(std::memory_order_acquire);
  if (library == nullptr) g_ask.store(library = load_library(), std::memory_order_release);
  const int error = library == nullptr ? ENOENT : library(below, follow, counts, &answer);
  errno = error != 0 ? error : before;
  return error != 0 ? -1 : 0;
}

int open_answer(const SysfsAnswer& answer, bool close_on_exec) {
  char name[sizeof kFileMark + sizeof answer.place];
  std::snprintf(name, sizeof name, "%s%s", kFileMark, answer.place);
  const int fd = os::memory_descriptor(name, close_on_exec);
  if (fd < 0 || answer.kind != driver::SysfsKind::File) return fd;
  if (!write_text(fd, answer)) {
    ::close(fd);
    errno = ENOMEM;
    return -1;
  }
  if (auto* const word = watched(fd)) word->fetch_or(bit_of(fd), std::memory_order_relaxed);
  return fd;
}

const char* Place::of(int fd) {
  const int before = errno;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t length = fd < 0 ? -1 : original().readlink(path, room, sizeof room - 1);
  errno = before;
  if (length < 0) return nullptr;
  room[length] = '\0';
  return place_in_link(room);
}

void before_read(int fd) {
  if (is_watched(fd) && ::lseek(fd, 0, SEEK_CUR) == 0) renew(fd);
}

void before_read_at(int fd, long offset) {
  if (offset == 0 && is_watched(fd)) renew(fd);
}

}  // namespace softhca::abi
