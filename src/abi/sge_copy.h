// SgeCopy: the scatter-gather entries of one work request, as the driver takes them.
//
// Threads  of one caller
#pragma once
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <span>

#include "driver/attributes.h"

namespace softhca::abi {

// One more than the device takes still fits, so that it is the engine that refuses, and says why.
class SgeCopy {
 public:
  std::span<const driver::Sge> of(const ibv_sge* list, int count) {
    const auto used = std::min(static_cast<std::size_t>(std::max(count, 0)), copies_.size());
    for (std::size_t i = 0; i < used; ++i)
      copies_[i] = {list[i].addr, list[i].length, list[i].lkey};
    return {copies_.data(), used};
  }

 private:
  std::array<driver::Sge, nic::kMaxSges + 1> copies_;
};

}  // namespace softhca::abi
