// Loads and stores of integers at a place in a byte string. Network order unless `_le`.
//
// REQUIRES: the bytes are there; readers of foreign input use base/cursor.h, which checks.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/assert.h"

namespace softhca {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "records are written as they lie");

template <class T>
constexpr T byte_swapped(T v) {
  if constexpr (sizeof(T) == 1)
    return v;
  else if constexpr (sizeof(T) == 2)
    return static_cast<T>(__builtin_bswap16(v));
  else if constexpr (sizeof(T) == 4)
    return static_cast<T>(__builtin_bswap32(v));
  else
    return static_cast<T>(__builtin_bswap64(v));
}

template <class T>
T load_le(ConstBytes bytes, std::size_t at = 0) {
  ASSERT(at <= bytes.size() && sizeof(T) <= bytes.size() - at);
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}
template <class T>
void store_le(Bytes bytes, std::size_t at, T v) {
  ASSERT(at <= bytes.size() && sizeof(T) <= bytes.size() - at);
  std::memcpy(bytes.data() + at, &v, sizeof v);
}
template <class T>
T load_be(ConstBytes bytes, std::size_t at = 0) {
  return byte_swapped(load_le<T>(bytes, at));
}
template <class T>
void store_be(Bytes bytes, std::size_t at, T v) {
  store_le<T>(bytes, at, byte_swapped(v));
}

// A trivially copyable record as bytes, and back.
template <class T>
ConstBytes bytes_of(const T& record) {
  return std::as_bytes(std::span<const T, 1>(&record, 1));
}
template <class T>
Bytes writable_bytes_of(T& record) {
  return std::as_writable_bytes(std::span<T, 1>(&record, 1));
}

}  // namespace softhca
