#include "os/kernel_features.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

#include "os/owned_fd.h"
#include "os/proc_file.h"

namespace softhca::os {
namespace {

constexpr unsigned kCapIpcLock = 14;    // linux/capability.h
constexpr int kMadvPopulateWrite = 23;  // Linux 5.14; newer than some libc headers
constexpr std::uint64_t kFirstPidNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO, fixed by the kernel

Attempt attempt(long answer) { return {answer < 0 ? errno : 0}; }

Attempt attempt_descriptor(long answer) {
  const Attempt made = attempt(answer);
  const OwnedFd closed(static_cast<int>(answer));
  return made;
}

Attempt try_io_uring() {
  io_uring_params parameters{};
  return attempt_descriptor(::syscall(SYS_io_uring_setup, 1, &parameters));
}

Attempt try_process_vm() {
  std::uint64_t from = 42, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  const ssize_t copied = ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0);
  return copied >= 0 && to != from ? Attempt{EIO} : attempt(copied);
}

Attempt try_madv_populate() {
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {errno};
  const Attempt made = attempt(::madvise(page, bytes, kMadvPopulateWrite));
  ::munmap(page, bytes);
  return made;
}

std::optional<std::uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

std::uint64_t inode_of(const char* path) {
  struct stat found {};
  return ::stat(path, &found) == 0 ? found.st_ino : 0;
}

// Debian's switch, AppArmor's switch and the kernel's own count, each only where it exists.
std::optional<bool> user_namespaces_allowed() {
  const auto count = number_in("/proc/sys/user/max_user_namespaces");
  const auto debian = number_in("/proc/sys/kernel/unprivileged_userns_clone");
  const auto apparmor = number_in("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  if (!count && !debian && !apparmor) return std::nullopt;
  return count.value_or(1) > 0 && debian.value_or(1) != 0 && apparmor.value_or(0) == 0;
}

std::uint64_t limit_bytes(rlim_t limit) { return limit == RLIM_INFINITY ? UINT64_MAX : limit; }

}  // namespace

std::string Attempt::error_text() const {
  return works() ? "" : std::generic_category().message(error);
}

KernelFeatures kernel_features() {
  utsname name{};
  ::uname(&name);
  return {.release = name.release,
          .io_uring = try_io_uring(),
          .process_vm = try_process_vm(),
          .pidfd = attempt_descriptor(::syscall(SYS_pidfd_open, ::getpid(), 0)),
          .madv_populate = try_madv_populate()};
}

Namespaces namespaces() {
  Namespaces found;
  found.user = inode_of("/proc/self/ns/user");
  found.network = inode_of("/proc/self/ns/net");
  found.pid = inode_of("/proc/self/ns/pid");
  found.in_user_namespace = !maps_every_user(read_proc_file("/proc/self/uid_map").value_or(""));
  found.in_pid_namespace = found.pid != 0 && found.pid != kFirstPidNamespace;
  found.unprivileged_user_namespaces = user_namespaces_allowed();
  if (const auto scope = number_in("/proc/sys/kernel/yama/ptrace_scope"))
    found.ptrace_scope = static_cast<int>(*scope);
  return found;
}

Limits limits() {
  const std::string status = read_proc_file("/proc/self/status").value_or("");
  rlimit memlock{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);
  return {.memlock_soft_bytes = limit_bytes(memlock.rlim_cur),
          .memlock_hard_bytes = limit_bytes(memlock.rlim_max),
          .ipc_lock_capability = capability_in(status, kCapIpcLock),
          .receive_buffer_max_bytes = number_in("/proc/sys/net/core/rmem_max").value_or(0),
          .send_buffer_max_bytes = number_in("/proc/sys/net/core/wmem_max").value_or(0)};
}

bool has_capability(unsigned bit) {
  return capability_in(read_proc_file("/proc/thread-self/status").value_or(""), bit);
}

bool capability_in(std::string_view status, unsigned bit) {
  constexpr std::string_view kLine = "CapEff:\t";
  const auto at = status.find(kLine);
  if (at == std::string_view::npos) return false;
  std::uint64_t mask = 0;
  const std::string_view digits = status.substr(at + kLine.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), mask, 16);
  return bit < 64 && (mask >> bit & 1) != 0;
}

bool maps_every_user(std::string_view uid_map) {
  std::istringstream text{std::string(uid_map)};
  std::uint64_t inside = 1, outside = 1, count = 0;
  text >> inside >> outside >> count;
  return inside == 0 && outside == 0 && count == UINT32_MAX;
}

}  // namespace softhca::os
