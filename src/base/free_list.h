// FreeList: hands out small numbers, and gives a returned one out again as late as possible.
//
// Late reuse matters for QPNs and keys: a packet or a key that outlived its object must not meet a
// new one that has the same number (CASES C26).
#pragma once
#include <cstdint>
#include <deque>
#include <optional>

namespace softhca {

class FreeList {
 public:
  // Numbers first .. first + count - 1; the first one handed out is `start` places in.
  FreeList(std::uint32_t first, std::uint32_t count, std::uint32_t start = 0)
      : first_(first), count_(count), start_(count == 0 ? 0 : start % count) {}

  // Nothing when all are out.
  std::optional<std::uint32_t> take() {
    if (fresh_ < count_) return first_ + (start_ + fresh_++) % count_;
    if (returned_.empty()) return std::nullopt;
    const std::uint32_t id = returned_.front();
    returned_.pop_front();
    return id;
  }

  // REQUIRES: `id` is out.
  void give_back(std::uint32_t id) { returned_.push_back(id); }

  std::uint32_t in_use() const { return fresh_ - static_cast<std::uint32_t>(returned_.size()); }

 private:
  std::uint32_t first_;
  std::uint32_t count_;
  std::uint32_t start_;
  std::uint32_t fresh_ = 0;  // how many numbers have never been handed out before this one
  std::deque<std::uint32_t> returned_;
};

}  // namespace softhca
