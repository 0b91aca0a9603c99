// ChildWait: a parent that waits after a fork until its child has done something, or has ended.
//
// Threads  opened before the fork; then one side in each process
#pragma once
#include "base/clock.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class ChildWait {
 public:
  static Result<ChildWait, SystemError> open();

  // In the parent. False if the child did not say so in that time.
  bool await(Duration at_most);
  // In the child. The end of the child says the same.
  void done();

 private:
  ChildWait(OwnedFd reads, OwnedFd writes) : reads_(std::move(reads)), writes_(std::move(writes)) {}
  OwnedFd reads_;
  OwnedFd writes_;  // nothing is ever written: closed by all who have it is the word
};

}  // namespace softhca::os
