// LentMemory: memory for a queue that the program's own allocator gives, by its parent domain.
//
// The allocator is called without the device: it may call verbs itself.
#pragma once
#include <cstdint>

#include "abi/ibverbs/memory.h"

namespace softhca::abi {

// What memory is for, as allocators are told. Numbers of this library's own.
enum class LentFor : std::uint64_t {
  SendQueue = 1,
  ReceiveQueue,
  SharedReceiveQueue,
  CompletionQueue
};

class LentMemory {
 public:
  LentMemory() = default;  // nothing: the queue has memory of the library's
  // Whole pages; nothing where the domain has no allocator, or that leaves it to the library.
  // FAILS WITH ENOMEM; EINVAL for memory that is not aligned as asked
  static Outcome<LentMemory> from(Pd* domain, std::uint64_t bytes, LentFor purpose);
  LentMemory(LentMemory&& other) noexcept { *this = std::move(other); }
  LentMemory& operator=(LentMemory&& other) noexcept {
    std::swap(domain_, other.domain_);
    std::swap(bytes_, other.bytes_);
    std::swap(purpose_, other.purpose_);
    return *this;
  }
  // Gives it back. REQUIRES: the queue is gone.
  ~LentMemory();

  Bytes bytes() const { return bytes_; }

 private:
  Pd* domain_ = nullptr;
  Bytes bytes_;
  LentFor purpose_{};
};

}  // namespace softhca::abi
