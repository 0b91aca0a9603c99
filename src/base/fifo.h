// Fifo: a queue whose entries lie side by side, in memory that is kept.
//
// std::deque takes and gives back memory as a short queue moves on: of large entries, with every
// second one. This one starts at the front again whenever it is empty, and closes the gap in front
// when that is half of it.
#pragma once
#include <cstddef>
#include <vector>

#include "base/assert.h"

namespace softhca {

template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == all_.size(); }
  std::size_t size() const { return all_.size() - first_; }

  // What is pushed or popped moves the others: no pointer to an entry stays valid.
  void push_back(const T& entry) { all_.push_back(entry); }
  void pop_front() {
    ASSERT(!empty());
    ++first_;
    if (empty()) return clear();
    if (first_ < kLongestGap || first_ < size()) return;
    all_.erase(all_.begin(), begin());
    first_ = 0;
  }
  void clear() {
    all_.clear();
    first_ = 0;
  }

  T& front() {
    ASSERT(!empty());
    return all_[first_];
  }
  const T& front() const {
    ASSERT(!empty());
    return all_[first_];
  }
  const T& back() const {
    ASSERT(!empty());
    return all_.back();
  }

  // Oldest first.
  auto begin() { return all_.begin() + static_cast<std::ptrdiff_t>(first_); }
  auto end() { return all_.end(); }
  auto begin() const { return all_.begin() + static_cast<std::ptrdiff_t>(first_); }
  auto end() const { return all_.end(); }

 private:
  static constexpr std::size_t kLongestGap = 64;  // entries that are moved for it now and then

  std::vector<T> all_;
  std::size_t first_ = 0;
};

}  // namespace softhca
