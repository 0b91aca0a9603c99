// Library: where SoftHCA's libibverbs lies, and which one a program would really load.
//
// See also  ld.so(8): --list, LD_LIBRARY_PATH
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/program_file.h"

namespace softhca::cli {

inline constexpr const char* kVerbsLibrary = "libibverbs.so.1";
inline constexpr const char* kLibraryPathVariable = "LD_LIBRARY_PATH";
inline constexpr const char* kSysfsLibrary = "softhca-sysfs.so";
inline constexpr const char* kPreloadVariable = "LD_PRELOAD";
inline constexpr const char* kSysfsVariable = "SOFTHCA_SYSFS";  // 0: nothing is preloaded

std::filesystem::path own_executable();

// Folders that may hold the libraries of an executable in `folder`, the best first.
std::vector<std::filesystem::path> library_folders(const std::filesystem::path& folder);
// The first of them that does. It is absolute.
std::optional<std::filesystem::path> find_library_folder(const std::filesystem::path& executable);

// Whether a libibverbs is one of SoftHCA's: by what it contains, wherever it lies.
bool is_softhca_library(const std::filesystem::path& library);

// LD_LIBRARY_PATH with `folder` in front, once.
std::string library_path_with(const std::string& folder, const std::string& before);

// LD_PRELOAD with `library` behind what is there, once.
std::string preload_with(const std::string& library, const std::string& before);
// Why the library that shows /sys/class/infiniband is not preloaded from a folder; "" if it is.
std::string why_not_preloaded(const std::filesystem::path& folder);
// Whether a program has AddressSanitizer in a library, which then has to be the first one.
bool needs_sanitizer_first(const std::filesystem::path& program);

// What the loader says it would load.
struct LoaderListing {
  std::optional<std::filesystem::path> verbs;  // libibverbs.so.1
  std::vector<std::string> missing;            // libraries that it did not find
  std::vector<std::string> complaints;         // versions that it did not find, errors
};
LoaderListing parse_loader_listing(std::string_view text);

// Asks the program's own loader, which does not start the program. `library_path` as for
// LD_LIBRARY_PATH. REQUIRES: a Dynamic program. FAILS WITH why there is no answer.
Result<LoaderListing, std::string> list_libraries(const ProgramFile& program,
                                                  const std::string& library_path);

}  // namespace softhca::cli
