// Sanitized: whether this build watches memory or threads. Each step then takes several times as
// long, and random tests make fewer of them.
#pragma once

namespace softhca {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kWatchesThreads = true;
#else
inline constexpr bool kWatchesThreads = false;
#endif

constexpr int random_steps(int steps) { return kSanitized ? steps / 6 : steps; }

}  // namespace softhca
