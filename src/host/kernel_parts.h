// What the sources of the kernel share.
#pragma once
#include "base/address.h"
#include "base/range.h"
#include "host/kernel.h"

namespace softhca::host {

// Programs have the lower half of the 48-bit space, also where tables have five levels.
inline constexpr VirtAddr kProgramEnd{std::uint64_t{1} << 47};
inline constexpr Range<VirtSpace> kProgramSpace{{0}, kProgramEnd.value};

inline PageRights read_only(PageRights rights) { return rights - PageRight::Write; }

template <class Number>
constexpr std::uint64_t number_of(Number value) {
  return static_cast<std::uint64_t>(value);
}

class Kernel::Kept {
 public:
  Kept(Kernel& kernel, Pid pid, Range<VirtSpace> range) : kernel_(kernel) {
    kernel_.kept_.push_back({pid, range});
  }
  ~Kept() { kernel_.kept_.pop_back(); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  Kernel& kernel_;
};

}  // namespace softhca::host
