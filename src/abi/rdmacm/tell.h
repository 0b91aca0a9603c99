// Why a call failed that no device was asked for, as a line on stderr.
//
// What a device refuses it tells itself.
#pragma once
#include <string_view>

#include "abi/errno_of.h"

namespace softhca::abi {

// The errno of `reason`, which is told once for each reason. `particulars`: sentences, with a space
// in front of each.
Errno refuse(std::string_view call, const trace::Reason& reason, std::string_view particulars = {});

// The same where the kernel has said `code`.
Errno refuse(std::string_view call, const trace::Reason& reason, std::string_view particulars,
             int code);

// What the connection manager answers to `call`.
template <class T>
Outcome<T> told(std::string_view call, Result<T, trace::Reason> result) {
  if (!result) return refuse(call, result.error());
  return outcome_of(std::move(result));
}

// The call has its turn at another time. EINVAL
Errno wrong_turn(std::string_view call, std::string_view particulars = {});

// A failure that an event brings, or a warning: always told.
void tell(std::string_view what, const trace::Reason& reason, std::string_view particulars = {});

}  // namespace softhca::abi
