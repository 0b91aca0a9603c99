// GuardedCopy: copies between our buffers and any address of this process, and never faults it.
//
// The program may have unmapped or protected what it once registered. A memcpy would then raise a
// signal in somebody else's program; the kernel's own copy answers EFAULT and says how far it came.
//
// ProcessVm  process_vm_readv/writev on ourselves: one call for many pieces
// Pipe       through a pipe, where a seccomp filter forbids the first: two calls and two copies for
//            each 64 KiB
//
// Threads     one call at a time (Pipe shares its pipe; nothing else is shared)
// Invariants  (1) no byte before `done_bytes` is missing, no page behind it is touched
//             (2) a write needs the page's own write right, as the program's would
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "os/owned_fd.h"

namespace softhca::os {

enum class CopyMethod : std::uint8_t { ProcessVm, Pipe };
std::string_view copy_method_name(CopyMethod method);

// A run of bytes of this process, mapped or not.
struct MemoryPiece {
  std::uintptr_t address{};
  std::size_t bytes{};
};

enum class CopyFault : std::uint8_t {
  None,
  Gone,       // not mapped, or nothing behind the mapping (a file's end)
  Protected,  // mapped without the right
};

struct CopyOutcome {
  std::uint64_t done_bytes{};
  CopyFault fault{};
  std::uintptr_t fault_address{};  // the first byte that could not be copied; 0 if all were
};

class GuardedCopy {
 public:
  // Finds out what this process may use, or takes `wanted`. Nothing if that is not available.
  static std::optional<GuardedCopy> open(std::optional<CopyMethod> wanted = std::nullopt);

  CopyMethod method() const { return method_; }

  // A buffer may lie in parts, one behind the other. REQUIRES: it is as long as the pieces
  // together, and is ours (mapped, no overlap).
  CopyOutcome from_memory(std::span<const MemoryPiece> from, std::span<const Bytes> to) const;
  CopyOutcome to_memory(std::span<const MemoryPiece> to, std::span<const ConstBytes> from) const;
  CopyOutcome from_memory(std::span<const MemoryPiece> from, Bytes to) const {
    return from_memory(from, {&to, 1});
  }
  CopyOutcome to_memory(std::span<const MemoryPiece> to, ConstBytes from) const {
    return to_memory(to, {&from, 1});
  }

  // In the child of a fork: closes the pipe, which is the parent's too. No copy afterwards.
  void abandon();

 private:
  explicit GuardedCopy(CopyMethod method) : method_(method) {}

  CopyMethod method_;
  OwnedFd pipe_out_;  // read end; only with Pipe
  OwnedFd pipe_in_;   // write end
};

}  // namespace softhca::os
