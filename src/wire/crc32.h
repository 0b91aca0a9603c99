// CRC-32 of Ethernet, which the ICRC is made of.
//
// Computed by libdeflate, linked in, until a faster library takes over: that of ISA-L, where the
// machine has it (kFasterLibrary), does 48 GB/s where libdeflate 1.14 does 12 (2.1 GHz, AVX-512).
//
// Threads  any
#pragma once
#include <cstdint>

#include "base/bytes.h"

namespace softhca::wire {

// The CRC of what `so_far` is the CRC of, and these bytes behind it; of nothing it is 0.
std::uint32_t crc32(std::uint32_t so_far, ConstBytes bytes);

inline constexpr const char* kFasterLibrary = "libisal.so.2";
inline constexpr const char* kFasterFunction = "crc32_gzip_refl";
using Crc32Function = std::uint32_t (*)(std::uint32_t so_far, const unsigned char* bytes,
                                        std::uint64_t count);
// From now on everything is computed by this function, unless it gives other results: then false.
// Null: by libdeflate again.
bool use_crc32(Crc32Function faster);

}  // namespace softhca::wire
