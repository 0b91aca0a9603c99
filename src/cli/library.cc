#include "cli/library.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

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

bool is_softhca_library(const fs::path& library) {
  std::ifstream file(library, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return content.find(kMark) != std::string::npos;
}

std::string library_path_with(const std::string& folder, const std::string& before) {
  if (before.empty() || before == folder) return folder;
  return before.starts_with(folder + ":") ? before : folder + ":" + before;
}

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
