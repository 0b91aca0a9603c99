// Asks for cache lines that will be needed soon. Does nothing that a program could notice.
#pragma once

namespace softhca {

inline void prefetch(const void* at) { __builtin_prefetch(at); }

// To write to it, while another CPU has it. The built-in asks for that only where the compiler may
// assume newer processors; older ones take the instruction as none.
inline void prefetch_for_write(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace softhca
