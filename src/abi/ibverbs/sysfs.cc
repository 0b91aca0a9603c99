// Files that programs read through the library.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "abi/entry.h"
#include "os/environment.h"
#include "os/owned_fd.h"

namespace softhca::abi {

// Not declared in the installed headers. The text lives as long as the process.
SOFTHCA_ENTRY("IBVERBS_1.0", const char*, ibv_get_sysfs_path, (), noexcept) {
  static const std::string& path = *new std::string([] {
    std::string chosen = os::env_text("SYSFS_PATH").value_or("/sys");
    while (chosen.size() > 1 && chosen.back() == '/') chosen.pop_back();
    return chosen;
  }());
  return path.c_str();
}

// The bytes of the file without the newline at their end, and a zero where there is room; -1 if it
// cannot be read.
SOFTHCA_ENTRY("IBVERBS_1.0", int, ibv_read_sysfs_file,
              (const char* directory, const char* file, char* text, std::size_t size), noexcept) {
  return answer_minus_one([&]() -> Outcome<int> {
    const std::string path = std::string(directory) + "/" + file;
    const os::OwnedFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) return Errno{errno};
    const ssize_t got = ::read(opened.get(), text, size);
    if (got < 0) return Errno{errno};
    auto length = static_cast<std::size_t>(got);
    if (length > 0 && text[length - 1] == '\n') --length;
    if (length < size) text[length] = '\0';
    return static_cast<int>(length);
  });
}

}  // namespace softhca::abi
