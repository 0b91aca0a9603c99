#include "os/reserved_memory.h"

#include <sys/mman.h>

namespace softhca::os {

Bytes reserve_memory() {
  constexpr std::size_t kMost = std::size_t{64} << 30;
  constexpr std::size_t kLeast = std::size_t{64} << 20;
  for (std::size_t bytes = kMost; bytes >= kLeast; bytes /= 4) {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) continue;
    madvise(start, bytes, MADV_WIPEONFORK);
    return {static_cast<std::byte*>(start), bytes};
  }
  return {};
}

void release_reserved(Bytes memory) {
  if (!memory.empty()) munmap(memory.data(), memory.size());
}

void discard_pages(Bytes pages) { madvise(pages.data(), pages.size(), MADV_DONTNEED); }

}  // namespace softhca::os
