#include "abi/rdmacm/tell.h"

#include <array>
#include <atomic>
#include <cstdio>

#include "os/environment.h"

namespace softhca::abi {
namespace {

constexpr std::size_t kReasons = 1024;
constinit std::array<std::atomic<bool>, kReasons> g_told{};

}  // namespace

void tell(std::string_view what, const trace::Reason& reason, std::string_view particulars) {
  if (os::env_flag("SOFTHCA_QUIET").value_or(false)) return;
  std::fprintf(stderr, "softhca: %.*s: %s\n", static_cast<int>(what.size()), what.data(),
               trace::reason_text(reason, particulars).c_str());
}

Errno refuse(std::string_view call, const trace::Reason& reason, std::string_view particulars,
             int code) {
  const auto place = static_cast<std::size_t>(reason.id) % kReasons;
  if (!g_told[place].exchange(true)) tell(call, reason, particulars);
  return {code};
}

Errno refuse(std::string_view call, const trace::Reason& reason, std::string_view particulars) {
  return refuse(call, reason, particulars, errno_of(reason.id).code);
}

Errno wrong_turn(std::string_view call, std::string_view particulars) {
  return refuse(call, {.id = trace::ReasonId::ConnectionState}, particulars);
}

}  // namespace softhca::abi
