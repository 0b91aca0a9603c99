#include "os/private_view.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "os/owned_fd.h"

namespace softhca::os {
namespace {

namespace fs = std::filesystem;

constexpr unsigned long kTmpfsFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return !file.fail();
}

// The user and the group keep their numbers.
bool map_own_user(uid_t user, gid_t group) {
  const auto line = [](unsigned id) {
    return std::to_string(id) + " " + std::to_string(id) + " 1";
  };
  return write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", line(user)) &&
         write_file("/proc/self/gid_map", line(group));
}

std::optional<ViewRefusal> enter_namespaces() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return ViewRefusal{"a user namespace", errno};
    if (!map_own_user(user, group)) return ViewRefusal{"mapping the user", errno};
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return ViewRefusal{"a mount namespace", errno};
  return std::nullopt;
}

bool mount_tmpfs(const std::string& folder) {
  return ::mount("softhca", folder.c_str(), "tmpfs", kTmpfsFlags, "mode=0755") == 0;
}

// A tmpfs over `folder` in which every folder and link that was there is still there.
bool cover(const std::string& folder) {
  const OwnedFd before(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!before) return false;
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error))
    names.push_back(at->path().filename());
  if (error || !mount_tmpfs(folder)) return false;
  const fs::path was = "/proc/self/fd/" + std::to_string(before.get());
  for (const fs::path& name : names) {
    const fs::path place = folder / name;
    if (fs::is_symlink(was / name, error)) {
      fs::copy_symlink(was / name, place, error);
      if (error) return false;
    } else if (fs::is_directory(was / name, error)) {
      if (!fs::create_directory(place, error) ||
          ::mount((was / name).c_str(), place.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
        return false;
    }
  }
  return true;
}

bool place_files(const std::string& folder, const std::vector<PlacedFile>& files) {
  std::error_code error;
  for (const PlacedFile& file : files) {
    const fs::path path = fs::path(folder) / file.path;
    fs::create_directories(path.parent_path(), error);
    if (file.is_link)
      fs::create_symlink(file.text, path, error);
    else if (!write_file(path, file.text) || ::chmod(path.c_str(), 0444) != 0)
      return false;
    if (error) return false;
  }
  return true;
}

}  // namespace

std::optional<ViewRefusal> enter_private_view(const std::string& folder,
                                              const std::vector<PlacedFile>& files) {
  if (const auto refusal = enter_namespaces()) return refusal;
  std::error_code error;
  std::string mounted = folder;
  if (!fs::is_directory(folder, error)) mounted = fs::path(folder).parent_path();
  errno = ENOENT;  // for what std::filesystem refuses
  if (mounted == folder ? !mount_tmpfs(folder) : !cover(mounted))
    return ViewRefusal{"a tmpfs over " + mounted, errno};
  fs::create_directory(folder, error);
  if (!place_files(folder, files)) return ViewRefusal{"the files in " + folder, errno};
  constexpr unsigned long kReadOnly = MS_REMOUNT | MS_BIND | MS_RDONLY | kTmpfsFlags;
  if (::mount(nullptr, mounted.c_str(), nullptr, kReadOnly, nullptr) != 0)
    return ViewRefusal{"a read-only " + mounted, errno};
  return std::nullopt;
}

Attempt try_private_view(const std::string& folder) {
  const pid_t child = ::fork();
  if (child < 0) return {errno};
  if (child == 0) {
    const auto refusal = enter_private_view(folder, {});
    ::_exit(refusal ? refusal->error : 0);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return {ECHILD};
  return {WEXITSTATUS(status)};
}

}  // namespace softhca::os
