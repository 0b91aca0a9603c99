// SgeCopy: the scatter-gather entries of one work request, as the driver takes them.
//
// Threads  of one caller
#pragma once
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "base/uncleared.h"
#include "driver/attributes.h"

namespace softhca::abi {

// One more than the device takes still fits, so that it is the engine that refuses, and says why.
class SgeCopy {
 public:
  std::span<const driver::Sge> of(const ibv_sge* list, int count) {
    const auto used = std::min(static_cast<std::size_t>(std::max(count, 0)), copies_.size());
    for (std::size_t i = 0; i < used; ++i)
      std::construct_at(copies_.data() + i,
                        driver::Sge{list[i].addr, list[i].length, list[i].lkey});
    return {copies_.data(), used};
  }

 private:
  // Most requests have one entry, and each call has a copy.
  Uncleared<driver::Sge, nic::kMaxSges + 1> copies_;
};

}  // namespace softhca::abi
