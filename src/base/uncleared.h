// Uncleared: room for some objects that is not cleared, where clearing it would take longer than
// what is mostly put there. Who reads an object has written it before.
#pragma once
#include <array>
#include <cstddef>
#include <type_traits>

namespace softhca {

template <class T, std::size_t kCount>
class Uncleared {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  static constexpr std::size_t size() { return kCount; }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }

 private:
  alignas(T) std::array<std::byte, kCount * sizeof(T)> bytes_;
};

}  // namespace softhca
