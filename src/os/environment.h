// Environment: typed reads of the SOFTHCA_* variables.
//
// A variable that is set but makes no sense reads as not set; the caller who wants to tell the
// user asks env_text() as well.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace softhca::os {

// Nothing if not set or empty.
std::optional<std::string> env_text(const char* name);
// "1", "yes", "true", "on" and their opposites, in any case.
std::optional<bool> env_flag(const char* name);
// Decimal or 0x..., the whole of the text.
std::optional<std::uint64_t> env_number(const char* name);

}  // namespace softhca::os
