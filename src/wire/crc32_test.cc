#include "wire/crc32.h"

#include <gtest/gtest.h>

#include <vector>

namespace softhca::wire {
namespace {

// Bit by bit, as the standard defines it.
std::uint32_t plain(std::uint32_t so_far, const unsigned char* bytes, std::uint64_t count) {
  std::uint32_t crc = ~so_far;
  for (std::uint64_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb8'8320 & (0u - (crc & 1)));
  }
  return ~crc;
}

std::uint32_t calls = 0;
std::uint32_t counted(std::uint32_t so_far, const unsigned char* bytes, std::uint64_t count) {
  ++calls;
  return plain(so_far, bytes, count);
}
std::uint32_t wrong_when_long(std::uint32_t so_far, const unsigned char* bytes,
                              std::uint64_t count) {
  return plain(so_far, bytes, count) ^ (count > 4000 ? 1 : 0);
}

std::vector<std::byte> some_bytes() {
  std::vector<std::byte> bytes(777);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

TEST(Crc32, IsThatOfTheStandard) {
  const std::vector<std::byte> bytes = some_bytes();
  EXPECT_EQ(crc32(0, {}), 0u);
  EXPECT_EQ(crc32(0, bytes),
            plain(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
  EXPECT_EQ(crc32(crc32(0, ConstBytes(bytes).first(100)), ConstBytes(bytes).subspan(100)),
            crc32(0, bytes));
}

TEST(Crc32, IsLeftToAFasterFunctionThatGivesTheSame) {
  const std::vector<std::byte> bytes = some_bytes();
  const std::uint32_t right = crc32(0, bytes);
  EXPECT_FALSE(use_crc32(wrong_when_long));
  ASSERT_TRUE(use_crc32(counted));
  calls = 0;
  EXPECT_EQ(crc32(0, bytes), right);
  EXPECT_EQ(calls, 1u);
  ASSERT_TRUE(use_crc32(nullptr));
  EXPECT_EQ(crc32(0, bytes), right);
  EXPECT_EQ(calls, 1u);
}

}  // namespace
}  // namespace softhca::wire
