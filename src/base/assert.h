// ASSERT: for what must hold if our own code is right. Always compiled in.
//
// In tests and tools a broken assertion prints and aborts. In a library that is injected into
// somebody else's program it must not: there a hook is set (driver/) that stops the *device*, as
// hardware would, and the program lives. The hook gets one chance; if it returns, the assertion
// throws AssertionFailed, which the library's entry points catch.
#pragma once
#include <exception>

namespace softhca {

struct AssertionFailed final : std::exception {
  const char* what() const noexcept override { return "softhca: assertion failed"; }
};

using AssertHook = void (*)(const char* expression, const char* file, int line);

// Sets the hook; null restores "print and abort".
void set_assert_hook(AssertHook hook) noexcept;

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace softhca

#define ASSERT(condition) \
  ((condition) ? void(0) : ::softhca::assert_failed(#condition, __FILE__, __LINE__))
