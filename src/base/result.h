// Result: a value, or the reason that there is none. Dropping one is a compile error.
#pragma once
#include <utility>
#include <variant>

#include "base/assert.h"

namespace softhca {

template <class T, class E>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(E error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }

  T& operator*() {
    ASSERT(*this);
    return *std::get_if<0>(&state_);
  }
  const T& operator*() const {
    ASSERT(*this);
    return *std::get_if<0>(&state_);
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

  const E& error() const {
    ASSERT(!*this);
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, E> state_;
};

// The same for commands that give nothing back.
template <class E>
class [[nodiscard]] Result<void, E> {
 public:
  Result() = default;
  Result(E error) : failed_(true), error_(std::move(error)) {}

  explicit operator bool() const { return !failed_; }
  const E& error() const {
    ASSERT(failed_);
    return error_;
  }

 private:
  bool failed_ = false;
  E error_{};
};

}  // namespace softhca
