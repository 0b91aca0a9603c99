// SystemError: which call the kernel refused, and with what number.
#pragma once
#include <string>

namespace softhca::os {

struct SystemError {
  int number = 0;         // errno
  const char* call = "";  // static text: "bind"
};

// The error of the call that has just failed; reads errno.
SystemError last_error(const char* call);

// Somebody else has the address.
bool is_address_taken(const SystemError& error);
// Nobody has it.
bool is_nobody_there(const SystemError& error);

// "bind: Address already in use"
std::string error_text(const SystemError& error);

}  // namespace softhca::os
