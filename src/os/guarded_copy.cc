#include "os/guarded_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/address.h"
#include "base/assert.h"
#include "os/self.h"

namespace softhca::os {
namespace {

constexpr std::size_t kPiecesPerCall = 64;      // well below the kernel's IOV_MAX
constexpr std::size_t kParts = 64;              // of a buffer, at most
constexpr std::size_t kBytesPerPipe = 1 << 16;  // what an ordinary pipe holds

std::uintptr_t page_of(std::uintptr_t address) { return address & ~(kPage4K - 1); }

// A copy was refused at `address`: why.
CopyFault classify(std::uintptr_t address) {
  auto* page = reinterpret_cast<void*>(page_of(address));
  unsigned char resident;
  if (::mincore(page, kPage4K, &resident) != 0) return CopyFault::Gone;
  // Mapped. Behind a file's end nothing can be faulted in, whatever the rights are.
  if (::madvise(page, kPage4K, MADV_POPULATE_READ) != 0 && errno == EFAULT) return CopyFault::Gone;
  return CopyFault::Protected;
}

// Walks through pieces as one string of bytes.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const MemoryPiece> pieces) : pieces_(pieces) { skip_empty(); }

  bool at_end() const { return next_ == pieces_.size(); }
  std::uintptr_t address() const { return pieces_[next_].address + offset_; }
  std::size_t left_in_piece() const { return pieces_[next_].bytes - offset_; }

  void advance(std::size_t bytes) {
    while (bytes != 0) {
      const std::size_t step = std::min(bytes, left_in_piece());
      offset_ += step;
      bytes -= step;
      skip_empty();
    }
  }

  // The next pieces, as many as fit. Returns their number.
  std::size_t fill(std::span<iovec> out) const {
    std::size_t count = 0;
    std::size_t offset = offset_;
    for (std::size_t i = next_; i < pieces_.size() && count < out.size(); ++i, offset = 0)
      if (const std::size_t length = pieces_[i].bytes - offset; length != 0)
        out[count++] = {reinterpret_cast<void*>(pieces_[i].address + offset), length};
    return count;
  }

 private:
  void skip_empty() {
    while (next_ < pieces_.size() && offset_ == pieces_[next_].bytes) {
      ++next_;
      offset_ = 0;
    }
  }

  std::span<const MemoryPiece> pieces_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
};

CopyOutcome stopped_at(std::uint64_t done_bytes, const PieceCursor& cursor) {
  return {done_bytes, classify(cursor.address()), cursor.address()};
}

// One direction of a copy by one method: moves some bytes at the cursor's place to or from the
// buffer's. Returns how many it moved; 0 means that the first byte cannot be moved.
using MoveSome = std::size_t (*)(const PieceCursor& memory, const PieceCursor& buffer, int pipe_out,
                                 int pipe_in);

template <auto kCall>
std::size_t move_by_vm(const PieceCursor& memory, const PieceCursor& buffer, int, int) {
  std::array<iovec, kPiecesPerCall> remote;
  std::array<iovec, kParts> local;
  const std::size_t pieces = memory.fill(remote);
  const std::size_t parts = buffer.fill(local);
  const auto call = [&](pid_t who) {
    return kCall(who, local.data(), parts, remote.data(), pieces, 0);
  };
  ssize_t moved = call(static_cast<pid_t>(own_pid()));
  // A program may end its main thread and go on; then only a thread that lives stands for it.
  if (moved < 0 && errno == ESRCH) moved = call(::gettid());
  return moved > 0 ? static_cast<std::size_t>(moved) : 0;
}

// Transfers between memory and a pipe that may stop inside a page although more of it is good:
// what is left of the page is tried once more by itself before it is called bad.
template <class Transfer>
std::size_t transfer_or_retry(std::uintptr_t address, std::size_t bytes, Transfer transfer) {
  ssize_t moved = transfer(bytes);
  const std::size_t in_page = kPage4K - (address & (kPage4K - 1));
  if (moved <= 0 && bytes > in_page) moved = transfer(in_page);
  return moved > 0 ? static_cast<std::size_t>(moved) : 0;
}

bool drain(int pipe_out, std::size_t bytes) {
  std::array<std::byte, 4096> sink;
  while (bytes != 0) {
    const ssize_t n = ::read(pipe_out, sink.data(), std::min(bytes, sink.size()));
    if (n <= 0) return false;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

std::size_t bytes_at_once(const PieceCursor& memory, const PieceCursor& buffer) {
  return std::min({buffer.left_in_piece(), memory.left_in_piece(), kBytesPerPipe});
}

std::size_t read_by_pipe(const PieceCursor& memory, const PieceCursor& buffer, int pipe_out,
                         int pipe_in) {
  auto* from = reinterpret_cast<const void*>(memory.address());
  auto* to = reinterpret_cast<std::byte*>(buffer.address());
  const std::size_t in_pipe =
      transfer_or_retry(memory.address(), bytes_at_once(memory, buffer),
                        [&](std::size_t n) { return ::write(pipe_in, from, n); });
  std::size_t out = 0;
  while (out < in_pipe) {
    const ssize_t n = ::read(pipe_out, to + out, in_pipe - out);
    ASSERT(n > 0);
    out += static_cast<std::size_t>(n);
  }
  return out;
}

std::size_t write_by_pipe(const PieceCursor& memory, const PieceCursor& buffer, int pipe_out,
                          int pipe_in) {
  auto* from = reinterpret_cast<const void*>(buffer.address());
  auto* to = reinterpret_cast<void*>(memory.address());
  const ssize_t filled = ::write(pipe_in, from, bytes_at_once(memory, buffer));
  ASSERT(filled > 0);
  const auto in_pipe = static_cast<std::size_t>(filled);
  const std::size_t moved = transfer_or_retry(
      memory.address(), in_pipe, [&](std::size_t n) { return ::read(pipe_out, to, n); });
  ASSERT(drain(pipe_out, in_pipe - moved));
  return moved;
}

// The kernel only reads what is copied from; its interface has one type for both directions.
template <class Part>
CopyOutcome copy(std::span<const MemoryPiece> pieces, std::span<const Part> parts,
                 MoveSome move_some, int pipe_out, int pipe_in) {
  ASSERT(parts.size() <= kParts);
  std::array<MemoryPiece, kParts> own;
  std::ranges::transform(parts, own.begin(), [](Part part) {
    return MemoryPiece{reinterpret_cast<std::uintptr_t>(part.data()), part.size()};
  });
  PieceCursor memory{pieces};
  PieceCursor buffer{std::span(own).first(parts.size())};
  std::size_t done = 0;
  while (!buffer.at_end()) {
    ASSERT(!memory.at_end());
    const std::size_t moved = move_some(memory, buffer, pipe_out, pipe_in);
    if (moved == 0) return stopped_at(done, memory);
    done += moved;
    memory.advance(moved);
    buffer.advance(moved);
  }
  return {.done_bytes = done, .fault = CopyFault::None, .fault_address = 0};
}

bool vm_copy_works() {
  std::uint64_t from = 1;
  std::uint64_t to = 0;
  const iovec local{&to, sizeof to};
  const iovec remote{&from, sizeof from};
  const auto whole = static_cast<ssize_t>(sizeof from);
  return ::process_vm_readv(::gettid(), &local, 1, &remote, 1, 0) == whole &&
         ::process_vm_writev(::gettid(), &local, 1, &remote, 1, 0) == whole;
}

}  // namespace

std::string_view copy_method_name(CopyMethod method) {
  return method == CopyMethod::ProcessVm ? "process_vm" : "pipe";
}

std::optional<GuardedCopy> GuardedCopy::open(std::optional<CopyMethod> wanted) {
  own_pid();  // maps its page now, not in the middle of a copy into a hole that is being looked at
  if (wanted != CopyMethod::Pipe && vm_copy_works()) return GuardedCopy(CopyMethod::ProcessVm);
  if (wanted == CopyMethod::ProcessVm) return std::nullopt;
  int ends[2];
  // Non-blocking: a pipe may be smaller than asked for, and nobody must ever wait on it.
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  GuardedCopy copy(CopyMethod::Pipe);
  copy.pipe_out_.reset(ends[0]);
  copy.pipe_in_.reset(ends[1]);
  return copy;
}

void GuardedCopy::abandon() {
  pipe_out_.reset();
  pipe_in_.reset();
}

CopyOutcome GuardedCopy::from_memory(std::span<const MemoryPiece> from,
                                     std::span<const Bytes> to) const {
  return copy(from, to,
              method_ == CopyMethod::ProcessVm ? move_by_vm<::process_vm_readv> : read_by_pipe,
              pipe_out_.get(), pipe_in_.get());
}

CopyOutcome GuardedCopy::to_memory(std::span<const MemoryPiece> to,
                                   std::span<const ConstBytes> from) const {
  return copy(to, from,
              method_ == CopyMethod::ProcessVm ? move_by_vm<::process_vm_writev> : write_by_pipe,
              pipe_out_.get(), pipe_in_.get());
}

}  // namespace softhca::os
