// Wrong: what can be broken on the way of a transfer, and how each failure is told.
//
// Spec  IBTA vol. 1, 9.9 and 11.6.2 (statuses); Intel VT-d, 7.2.3 (fault reasons); PCI Express
// Base,
//       2.3 (what a blocked request becomes); getrlimit(2), fork(2)
#pragma once
#include <span>
#include <string_view>

namespace softhca::sim {

struct Wrong {
  std::string_view name;  // as typed: "wrong-key"
  std::string_view text;  // "The request carries a key that the server never gave out."
};

std::span<const Wrong> wrongs();

}  // namespace softhca::sim
