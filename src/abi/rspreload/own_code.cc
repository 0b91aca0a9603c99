#include "abi/rspreload/own_code.h"

#include <link.h>

#include <array>
#include <atomic>
#include <cstring>

namespace softhca::abi {
namespace {

struct Range {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
};
constinit std::array<Range, 2> g_ranges{};

bool is_file(const char* path, const char* name) {
  const char* const slash = std::strrchr(path, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : path, name, std::strlen(name)) == 0;
}

int note_library(dl_phdr_info* library, std::size_t, void*) {
  constexpr const char* kNames[] = {"librdmacm.so", "libibverbs.so"};
  for (std::size_t i = 0; i < g_ranges.size(); ++i) {
    if (library->dlpi_name == nullptr || !is_file(library->dlpi_name, kNames[i])) continue;
    std::uintptr_t end = 0;
    for (int part = 0; part < library->dlpi_phnum; ++part) {
      const auto& header = library->dlpi_phdr[part];
      if (header.p_type == PT_LOAD && header.p_vaddr + header.p_memsz > end)
        end = header.p_vaddr + header.p_memsz;
    }
    g_ranges[i].begin.store(library->dlpi_addr);
    g_ranges[i].end.store(library->dlpi_addr + end);
  }
  return 0;
}

// This library needs both, so they are there before it, and stay.
[[gnu::constructor]] void note_libraries() { ::dl_iterate_phdr(note_library, nullptr); }

}  // namespace

bool is_own_code(std::uintptr_t caller) {
  if (g_ranges[0].end.load() == 0) note_libraries();
  for (const Range& range : g_ranges)
    if (caller >= range.begin.load() && caller < range.end.load()) return true;
  return false;
}

}  // namespace softhca::abi
