// AppendFile: a file that several processes append whole records to.
#pragma once
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class AppendFile {
 public:
  // Opens it for appending. Whoever creates it writes `head` first, before anybody can see it.
  static Result<AppendFile, SystemError> open(const std::string& path, ConstBytes head);

  // One write; false if it was not written whole.
  bool append(ConstBytes record);

  void close() { fd_.reset(); }

 private:
  explicit AppendFile(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

}  // namespace softhca::os
