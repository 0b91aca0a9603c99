#include "base/assert.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace softhca {
namespace {
std::atomic<AssertHook> g_hook{nullptr};
}

void set_assert_hook(AssertHook hook) noexcept { g_hook.store(hook); }

void assert_failed(const char* expression, const char* file, int line) {
  if (const AssertHook hook = g_hook.load()) {
    hook(expression, file, line);
    throw AssertionFailed{};
  }
  std::fprintf(stderr, "softhca: %s:%d: assertion failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace softhca
