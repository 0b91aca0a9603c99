#include "os/system_error.h"

#include <cerrno>
#include <system_error>

namespace softhca::os {

SystemError last_error(const char* call) { return {errno, call}; }

bool is_address_taken(const SystemError& error) { return error.number == EADDRINUSE; }

std::string error_text(const SystemError& error) {
  return std::string(error.call) + ": " + std::generic_category().message(error.number);
}

}  // namespace softhca::os
