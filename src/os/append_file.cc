#include "os/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace softhca::os {

namespace {

bool write_whole(int fd, ConstBytes bytes) {
  return ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

Result<AppendFile, SystemError> AppendFile::open(const std::string& path, ConstBytes head) {
  OwnedFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return last_error("open");
  // Nobody appends before this has returned to him, so whoever locks an empty file is the first.
  // A file system without locks, or a pipe, goes on without.
  static_cast<void>(flock(fd.get(), LOCK_EX));
  struct stat file {};
  bool has_head = false;
  bool written = true;
  if (fstat(fd.get(), &file) == 0) has_head = S_ISREG(file.st_mode) && file.st_size > 0;
  if (!has_head) written = write_whole(fd.get(), head);
  const SystemError error = last_error("write");
  static_cast<void>(flock(fd.get(), LOCK_UN));
  if (!written) return error;
  return AppendFile(std::move(fd));
}

bool AppendFile::append(ConstBytes record) { return write_whole(fd_.get(), record); }

}  // namespace softhca::os
