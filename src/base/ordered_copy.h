// Copies to and from memory that others look at meanwhile, ordered as on a bus: the last 8 bytes of
// what is written appear last, and whoever reads them sees all that was written before them.
//
// Words of 8 bytes in their place are moved whole.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace softhca {

// How much of it comes before its last word; all, where it does not end with one.
inline std::size_t before_last_word(const std::byte* shared, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const bool has_word =
      bytes >= kWord && (reinterpret_cast<std::uintptr_t>(shared) + bytes) % kWord == 0;
  return has_word ? bytes - kWord : bytes;
}

inline void copy_to_shared(std::byte* shared, ConstBytes from) {
  const std::size_t plain = before_last_word(shared, from.size());
  std::memcpy(shared, from.data(), plain);
  if (plain == from.size()) return;
  std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(shared + plain));
  word.store(load_le<std::uint64_t>(from, plain), std::memory_order_release);
}

inline void copy_from_shared(Bytes to, std::byte* shared) {
  const std::size_t plain = before_last_word(shared, to.size());
  if (plain != to.size()) {
    const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(shared + plain));
    store_le(to, plain, word.load(std::memory_order_acquire));
  }
  std::memcpy(to.data(), shared, plain);
}

}  // namespace softhca
