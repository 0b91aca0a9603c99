// Kernel features: what this kernel, this container and this user's limits grant us.
//
// Each answer comes from trying, not from the release number: containers and seccomp filters take
// away what the kernel has.
//
// Threads  any; looks once, each call anew
// See also cli/command_doctor.cc, which prints them
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace softhca::os {

// One attempt: 0 if it worked, else the errno it was refused with.
struct Attempt {
  int error = 0;
  bool works() const { return error == 0; }
  std::string error_text() const;  // "Operation not permitted"; "" if it worked
};

struct KernelFeatures {
  std::string release;  // "6.1.0-18-amd64"
  Attempt io_uring;     // io_uring_setup
  Attempt process_vm;   // process_vm_readv on this process
  Attempt pidfd;        // pidfd_open
  Attempt madv_populate;
};
KernelFeatures kernel_features();

struct Namespaces {
  std::uint64_t user{}, network{}, pid{};  // inode numbers; equal numbers are the same namespace
  bool in_user_namespace{};                // not the machine's first one
  bool in_pid_namespace{};
  // Whether an ordinary user may make user namespaces; nothing if this kernel does not say.
  std::optional<bool> unprivileged_user_namespaces;
  std::optional<int> ptrace_scope;  // Yama: 0 same user, 1 descendants only, 2 root, 3 nobody
};
Namespaces namespaces();

struct Limits {
  std::uint64_t memlock_soft_bytes{};  // UINT64_MAX: unlimited
  std::uint64_t memlock_hard_bytes{};
  bool ipc_lock_capability{};
  std::uint64_t receive_buffer_max_bytes{};  // net.core.rmem_max; 0 if unknown
  std::uint64_t send_buffer_max_bytes{};
};
Limits limits();

// One bit of the mask in a line like "CapEff:\t000001ff" of /proc/PID/status; false without it.
bool capability_in(std::string_view status, unsigned bit);
// Of this process, now: bit 13 is CAP_NET_RAW.
bool has_capability(unsigned bit);
inline constexpr unsigned kCapNetRaw = 13;
// Whether a uid_map is that of the machine's first user namespace.
bool maps_every_user(std::string_view uid_map);

}  // namespace softhca::os
