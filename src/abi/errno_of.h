// errno_of: the errno that a program sees for a reason. One table for every call.
//
// See also  trace/reason.h; man pages of libibverbs, section RETURN VALUE
#pragma once
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "trace/reason.h"

namespace softhca::abi {

struct Errno {
  int code{};  // positive
};

template <class T>
using Outcome = Result<T, Errno>;

Errno errno_of(trace::ReasonId id);

template <class T>
Outcome<T> outcome_of(Outcome<T> outcome) {
  return outcome;
}
template <class T>
Outcome<T> outcome_of(Result<T, trace::Reason> result) {
  if (!result) return errno_of(result.error().id);
  if constexpr (std::is_void_v<T>)
    return {};
  else
    return std::move(*result);
}

}  // namespace softhca::abi
