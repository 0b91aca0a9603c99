// TestPages: pages that a test may unmap, protect and replace under the code that it tests.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/address.h"
#include "base/assert.h"
#include "base/bytes.h"

namespace softhca::os {

class TestPages {
 public:
  explicit TestPages(std::size_t pages) : pages_(pages), start_(map(nullptr, pages, 0)) {}
  ~TestPages() { ::munmap(start_, pages_ * kPage4K); }
  TestPages(const TestPages&) = delete;
  TestPages& operator=(const TestPages&) = delete;

  std::byte* page(std::size_t index) const { return start_ + index * kPage4K; }
  std::uintptr_t address(std::size_t index = 0) const {
    return reinterpret_cast<std::uintptr_t>(page(index));
  }
  Bytes bytes() const { return {start_, pages_ * kPage4K}; }

  // Each byte gets a value that depends on its place and on `salt`.
  void fill(unsigned salt) const {
    for (std::size_t i = 0; i < pages_ * kPage4K; ++i) start_[i] = value_at(i, salt);
  }
  static std::byte value_at(std::size_t place, unsigned salt) {
    return static_cast<std::byte>((place * 131 + (place >> 12) * 7 + salt) & 0xff);
  }

  void unmap(std::size_t first, std::size_t count = 1) const {
    ASSERT(::munmap(page(first), count * kPage4K) == 0);
  }
  void protect_read_only(std::size_t first, std::size_t count = 1) const {
    ASSERT(::mprotect(page(first), count * kPage4K, PROT_READ) == 0);
  }
  void protect_none(std::size_t first, std::size_t count = 1) const {
    ASSERT(::mprotect(page(first), count * kPage4K, PROT_NONE) == 0);
  }
  // Fresh zero pages at the same place.
  void replace(std::size_t first, std::size_t count = 1) const {
    map(page(first), count, MAP_FIXED);
  }
  // A file of no bytes: mapped, and nothing behind it.
  void replace_by_empty_file(std::size_t at) const {
    const int fd = ::memfd_create("empty", MFD_CLOEXEC);
    ASSERT(::mmap(page(at), kPage4K, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
           page(at));
    ::close(fd);
  }

 private:
  static std::byte* map(std::byte* at, std::size_t pages, int flags) {
    void* start = ::mmap(at, pages * kPage4K, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    ASSERT(start != MAP_FAILED);
    return static_cast<std::byte*>(start);
  }

  std::size_t pages_;
  std::byte* start_;
};

}  // namespace softhca::os
