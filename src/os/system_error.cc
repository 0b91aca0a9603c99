#include "os/system_error.h"

#include <cerrno>
#include <system_error>

namespace softhca::os {

SystemError last_error(const char* call) { return {errno, call}; }

bool is_address_taken(const SystemError& error) { return error.number == EADDRINUSE; }
bool is_nobody_there(const SystemError& error) { return error.number == ECONNREFUSED; }

std::string error_text(const SystemError& error) {
  return std::string(error.call) + ": " + std::generic_category().message(error.number);
}

}  // namespace softhca::os
