// SgeCopy: the scatter-gather entries of one work request, as the driver takes them.
//
// Threads  of one caller
#pragma once
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "driver/attributes.h"

namespace softhca::abi {

// One more than the device takes still fits, so that it is the engine that refuses, and says why.
class SgeCopy {
 public:
  std::span<const driver::Sge> of(const ibv_sge* list, int count) {
    const auto used = std::min(static_cast<std::size_t>(std::max(count, 0)), kRoom);
    auto* const copies = reinterpret_cast<driver::Sge*>(room_);
    for (std::size_t i = 0; i < used; ++i)
      std::construct_at(copies + i, driver::Sge{list[i].addr, list[i].length, list[i].lkey});
    return {copies, used};
  }

 private:
  static constexpr std::size_t kRoom = nic::kMaxSges + 1;
  // Not cleared: most requests have one entry, and each call has a copy.
  alignas(driver::Sge) std::byte room_[kRoom * sizeof(driver::Sge)];
};

}  // namespace softhca::abi
