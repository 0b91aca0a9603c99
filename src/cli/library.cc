#include "cli/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "os/environment.h"
#include "os/exec.h"

namespace softhca::cli {
namespace {

namespace fs = std::filesystem;

constexpr Duration kLoaderLimit = seconds(5);
// The name of a variable that every build of the library reads.
constexpr std::string_view kMark = "SOFTHCA_NETDEV";

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(" \t"));
  text.erase(text.find_last_not_of(" \t\r") + 1);
  return text;
}

// In pieces: a program may be large.
bool contains(const fs::path& name, std::string_view text) {
  std::ifstream file(name, std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 20);
  std::string window;  // the end of what came before, and the next piece
  do {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    window.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (window.find(text) != std::string::npos) return true;
    window.erase(0, window.size() - std::min(window.size(), text.size() - 1));
  } while (file);
  return false;
}

}  // namespace

fs::path own_executable() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

std::vector<fs::path> library_folders(const fs::path& folder) {
  return {folder / "lib", (folder / ".." / "lib" / "softhca").lexically_normal(),
          (folder / ".." / "lib").lexically_normal()};
}

std::optional<fs::path> find_library_folder(const fs::path& executable) {
  for (const fs::path& folder : library_folders(executable.parent_path()))
    if (is_softhca_library(folder / kVerbsLibrary)) return fs::absolute(folder);
  return std::nullopt;
}

bool is_softhca_library(const fs::path& library) { return contains(library, kMark); }

std::string library_path_with(const std::string& folder, const std::string& before) {
  if (before.empty() || before == folder) return folder;
  return before.starts_with(folder + ":") ? before : folder + ":" + before;
}

std::string preload_with(const std::string& library, const std::string& before) {
  if (before.empty()) return library;
  return before.find(library) != std::string::npos ? before : before + ":" + library;
}

std::string why_not_preloaded(const fs::path& folder) {
  const std::string library = (folder / kSysfsLibrary).string();
  std::error_code error;
  if (os::env_flag(kSysfsVariable) == false) return fmt::format("{} says so", kSysfsVariable);
  if (!fs::exists(library, error)) return fmt::format("there is no {}", library);
  if (library.find_first_of(" :") != std::string::npos)
    return fmt::format("LD_PRELOAD cannot hold the name {}", library);
  return "";
}

bool needs_sanitizer_first(const fs::path& program) { return contains(program, "libasan.so"); }

LoaderListing parse_loader_listing(std::string_view text) {
  LoaderListing listing;
  std::istringstream lines{std::string(text)};
  for (std::string raw; std::getline(lines, raw);) {
    const std::string line = trimmed(raw);
    const auto arrow = line.find(" => ");
    const std::string name = line.substr(0, arrow);
    if (arrow != std::string::npos && line.ends_with("=> not found")) {
      if (std::ranges::find(listing.missing, name) == listing.missing.end())
        listing.missing.push_back(name);
    } else if (arrow != std::string::npos && name.substr(name.rfind('/') + 1) == kVerbsLibrary) {
      const std::string target = line.substr(arrow + 4);
      listing.verbs = target.substr(0, target.rfind(" ("));
    } else if (arrow == std::string::npos && (line.find("not found") != std::string::npos ||
                                              line.find("error") != std::string::npos)) {
      listing.complaints.push_back(line);
    }
  }
  return listing;
}

Result<LoaderListing, std::string> list_libraries(const ProgramFile& program,
                                                  const std::string& library_path) {
  ASSERT(program.kind == ProgramKind::Dynamic);
  const auto caught = os::run_and_catch({program.interpreter, "--list", program.path.string()},
                                        {{kLibraryPathVariable, library_path}}, kLoaderLimit);
  if (!caught)
    return "cannot start " + program.interpreter + ": " +
           std::generic_category().message(caught.error());
  if (caught->out_of_time) return program.interpreter + " gave no answer";
  LoaderListing listing = parse_loader_listing(caught->text);
  if (caught->exit_status != 0 && listing.missing.empty() && listing.complaints.empty())
    return trimmed(caught->text.substr(0, caught->text.find('\n')));
  return listing;
}

}  // namespace softhca::cli
