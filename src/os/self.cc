#include "os/self.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <new>
#include <string_view>

#include "base/address.h"

namespace softhca::os {
namespace {

// What has to be found out anew in every process: 0 until somebody asks.
struct Identity {
  std::atomic<std::uint64_t> lineage{0};
  std::atomic<std::uint32_t> pid{0};
};

constinit std::atomic<Identity*> g_identity{nullptr};
// Ordinary memory: a child counts on from where its parent was.
constinit std::atomic<std::uint64_t> g_ancestors{0};
// For kernels that cannot wipe a page at fork (before Linux 4.14).
constinit Identity g_unwiped;

void forget_identity() {
  g_unwiped.lineage.store(0);
  g_unwiped.pid.store(0);
}

// In a page that the kernel wipes in every forked child, also in one that no code of ours ran in.
Identity& make_identity() {
  constexpr int kRights = PROT_READ | PROT_WRITE;
  Identity* made = &g_unwiped;
  void* page = ::mmap(nullptr, kPage4K, kRights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool wiped = page != MAP_FAILED && ::madvise(page, kPage4K, MADV_WIPEONFORK) == 0;
  if (wiped)
    made = new (page) Identity;
  else
    ::pthread_atfork(nullptr, nullptr, forget_identity);
  Identity* first = nullptr;
  if (g_identity.compare_exchange_strong(first, made)) first = made;
  if (page != MAP_FAILED && page != first) ::munmap(page, kPage4K);
  return *first;
}

Identity& identity() {
  Identity* const known = g_identity.load(std::memory_order_acquire);
  return known != nullptr ? *known : make_identity();
}

}  // namespace

std::string own_name() {
  std::array<char, 17> name{};
  if (prctl(PR_GET_NAME, name.data()) != 0) return "";
  return name.data();
}

std::uint32_t own_pid() {
  std::atomic<std::uint32_t>& known = identity().pid;
  std::uint32_t pid = known.load(std::memory_order_relaxed);
  if (pid == 0) known.store(pid = static_cast<std::uint32_t>(::getpid()));
  return pid;
}

std::uint32_t own_thread() {
  struct Known {
    std::uint64_t lineage;
    std::uint32_t number;
  };
  static thread_local Known known{};
  if (const std::uint64_t now = lineage(); known.lineage != now)
    known = {now, static_cast<std::uint32_t>(::gettid())};
  return known.number;
}

std::uint64_t lineage() {
  std::atomic<std::uint64_t>& known = identity().lineage;
  std::uint64_t number = known.load(std::memory_order_relaxed);
  if (number != 0) return number;
  const std::uint64_t next = g_ancestors.fetch_add(1) + 1;
  return known.compare_exchange_strong(number, next) ? next : number;
}

namespace {

std::string hex(std::uint64_t number) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

}  // namespace

std::string code_place(std::uint64_t address) {
  Dl_info found{};
  if (::dladdr(reinterpret_cast<const void*>(address), &found) == 0 || found.dli_fname == nullptr)
    return hex(address);
  std::string_view file = found.dli_fname;
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos)
    file.remove_prefix(slash + 1);
  const auto offset_from = [&](const void* start) {
    return "+" + hex(address - reinterpret_cast<std::uintptr_t>(start));
  };
  if (found.dli_sname == nullptr) return std::string(file) + offset_from(found.dli_fbase);
  return std::string(file) + "(" + found.dli_sname + offset_from(found.dli_saddr) + ")";
}

void* optional_function(const char* library, const char* name) {
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return loaded == nullptr ? nullptr : ::dlsym(loaded, name);
}

}  // namespace softhca::os
