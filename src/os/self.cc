#include "os/self.h"

#include <sys/prctl.h>

#include <array>

namespace softhca::os {

std::string own_name() {
  std::array<char, 17> name{};
  if (prctl(PR_GET_NAME, name.data()) != 0) return "";
  return name.data();
}

}  // namespace softhca::os
