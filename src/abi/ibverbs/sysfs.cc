// Files that programs read through the library.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "abi/entry.h"
#include "abi/sysfs/answer.h"
#include "abi/sysfs/path.h"
#include "os/environment.h"
#include "os/owned_fd.h"

namespace softhca::abi {
namespace {

// FAILS WITH ENOENT, ENOTDIR
Outcome<driver::SysfsFound> find_in_tree(std::string_view path, bool follow, bool counts) {
  driver::SysfsFound found = driver::SysfsTree::now().find(path, follow, counts);
  if (found.kind == driver::SysfsKind::Absent) return Errno{ENOENT};
  if (found.kind == driver::SysfsKind::NotFolder) return Errno{ENOTDIR};
  return found;
}

// Of a file of the tree, or the first `size` bytes of any other.
Outcome<std::string> content_of(std::string path, std::size_t size) {
  if (const char* const below = below_root(path.c_str())) {
    auto found = find_in_tree(below, true, true);
    if (!found) return found.error();
    if (found->kind == driver::SysfsKind::File) return std::move(found->text);
    if (found->kind != driver::SysfsKind::Elsewhere) return Errno{EISDIR};
    path = found->text;
  }
  const os::OwnedFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return Errno{errno};
  std::string content(size, '\0');
  const ssize_t got = ::read(opened.get(), content.data(), size);
  if (got < 0) return Errno{errno};
  content.resize(static_cast<std::size_t>(got));
  return content;
}

}  // namespace

// Not declared in the installed headers. The text lives as long as the process.
SOFTHCA_ENTRY("IBVERBS_1.0", const char*, ibv_get_sysfs_path, (), noexcept) {
  static const std::string& path = *new std::string([] {
    std::string chosen = os::env_text("SYSFS_PATH").value_or("/sys");
    while (chosen.size() > 1 && chosen.back() == '/') chosen.pop_back();
    return chosen;
  }());
  return path.c_str();
}

// What programs find under /sys/class/infiniband: the library that `softhca run` preloads asks.
SOFTHCA_ENTRY("IBVERBS_SOFTHCA", int, ibv_softhca_sysfs,
              (const char* path, int follow, int counts, SysfsAnswer* answer), noexcept) {
  return answer_errno([&]() -> Outcome<void> {
    const Outcome<driver::SysfsFound> found = find_in_tree(path, follow != 0, counts != 0);
    if (!found) return found.error();
    if (found->place.size() >= sizeof answer->place || found->text.size() >= sizeof answer->text)
      return Errno{ENAMETOOLONG};
    answer->kind = found->kind;
    answer->text_bytes = static_cast<std::uint32_t>(found->text.size());
    std::memcpy(answer->place, found->place.c_str(), found->place.size() + 1);
    std::memcpy(answer->text, found->text.c_str(), found->text.size() + 1);
    return {};
  });
}

// The bytes of the file without the newline at their end, and a zero where there is room; -1 if it
// cannot be read.
SOFTHCA_ENTRY("IBVERBS_1.0", int, ibv_read_sysfs_file,
              (const char* directory, const char* file, char* text, std::size_t size), noexcept) {
  return answer_minus_one([&]() -> Outcome<int> {
    const Outcome<std::string> content = content_of(std::string(directory) + "/" + file, size);
    if (!content) return content.error();
    std::size_t length = std::min(content->size(), size);
    std::memcpy(text, content->data(), length);
    if (length > 0 && text[length - 1] == '\n') --length;
    if (length < size) text[length] = '\0';
    return static_cast<int>(length);
  });
}

}  // namespace softhca::abi
