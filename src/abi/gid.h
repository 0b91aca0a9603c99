// A GID as verbs have it, and as the device has it: the same 16 bytes.
#pragma once
#include <infiniband/verbs.h>

#include <cstring>

#include "wire/gid.h"

namespace softhca::abi {

inline wire::Gid gid_of(const ibv_gid& verbs) {
  wire::Gid gid;
  static_assert(sizeof gid.bytes == sizeof verbs.raw);
  std::memcpy(gid.bytes.data(), verbs.raw, sizeof verbs.raw);
  return gid;
}

inline ibv_gid as_verbs(const wire::Gid& gid) {
  ibv_gid verbs;
  std::memcpy(verbs.raw, gid.bytes.data(), sizeof verbs.raw);
  return verbs;
}

}  // namespace softhca::abi
