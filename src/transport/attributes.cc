#include "transport/attributes.h"

#include <array>

namespace softhca::transport {

Duration rnr_delay(std::uint8_t code) {
  // In units of 10 us: IBTA vol. 1, table 45.
  static constexpr std::array<std::int64_t, 32> kTensOfMicroseconds = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return microseconds(10) * kTensOfMicroseconds[code & 31];
}

}  // namespace softhca::transport
