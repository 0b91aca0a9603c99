// Cursor: reads foreign bytes from front to back and never past their end.
//
// A read that does not fit gives nothing and leaves the cursor failed; callers check once at the
// end. There is no way to read by index.
#pragma once
#include <optional>

#include "base/bytes.h"

namespace softhca {

class Cursor {
 public:
  explicit Cursor(ConstBytes bytes) : rest_(bytes) {}

  // The next `n` bytes, or an empty span (and the cursor fails) when fewer are left.
  ConstBytes take(std::size_t n) {
    if (failed_ || n > rest_.size()) {
      failed_ = true;
      return {};
    }
    const ConstBytes taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }

  // The next big-endian integer; 0 (and the cursor fails) when it is not there.
  template <class T>
  T take_be() {
    const ConstBytes taken = take(sizeof(T));
    return taken.empty() ? T{} : load_be<T>(taken);
  }

  // Cuts `n` bytes off the end (a trailer). False when fewer are left.
  bool drop_back(std::size_t n) {
    if (failed_ || n > rest_.size()) {
      failed_ = true;
      return false;
    }
    rest_ = rest_.first(rest_.size() - n);
    return true;
  }

  ConstBytes rest() const { return rest_; }
  std::size_t left() const { return rest_.size(); }
  bool failed() const { return failed_; }

 private:
  ConstBytes rest_;
  bool failed_ = false;
};

}  // namespace softhca
