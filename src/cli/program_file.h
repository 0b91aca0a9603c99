// ProgramFile: what an executable is, as far as it matters for which libraries it will load.
//
// Spec  System V ABI, ch. 4 and 5 (ELF headers); ld.so(8) (secure-execution mode)
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace softhca::cli {

enum class ProgramKind : std::uint8_t {
  Dynamic,  // ELF of this machine's kind with an interpreter: loads libraries
  Static,   // ELF without one: loads none
  Foreign,  // ELF of another machine or word size
  Script,   // begins with #!
  Other,    // nothing of these, or not readable
};

struct ProgramFile {
  std::filesystem::path path;
  ProgramKind kind = ProgramKind::Other;
  std::string interpreter;    // of Dynamic (ld.so) and Script
  bool gains_rights = false;  // setuid or setgid to somebody else: LD_LIBRARY_PATH is ignored
};

// Where execvp() would find it: a name with a slash as it is, else the first of PATH.
std::optional<std::filesystem::path> find_program(const std::string& name);

ProgramFile examine_program(const std::filesystem::path& path);

// The kind and interpreter of a file with this content (at least its first page).
ProgramFile classify_program(ConstBytes content);

// Why `softhca run` will have no effect on it; "" if it will.
std::string why_not_injected(const ProgramFile& program);

}  // namespace softhca::cli
