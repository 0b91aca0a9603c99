// Attributes of a queue pair, between the verbs structure and the transport's.
#pragma once
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

#include "abi/errno_of.h"
#include "driver/attributes.h"

namespace softhca::abi {

// Looks only at what `mask` selects. FAILS WITH EINVAL for bits and numbers that mean nothing.
Outcome<transport::QpAttributes> attributes_of(const ibv_qp_attr& verbs, int mask);
ibv_qp_attr as_verbs(const transport::QpAttributes& attributes);

transport::AddressVector address_of(const ibv_ah_attr& verbs);
ibv_ah_attr as_verbs(const transport::AddressVector& address);

// The number in an enumeration that a program filled in, which may be none of its enumerators.
template <class Enum>
std::uint32_t number_of(const Enum& enumerator) {
  static_assert(sizeof(Enum) == sizeof(std::uint32_t));
  std::uint32_t number;
  std::memcpy(&number, &enumerator, sizeof number);
  return number;
}

// Bytes of an ibv_mtu; 0: no such number.
std::uint32_t mtu_bytes(std::uint32_t mtu);
ibv_mtu mtu_number(std::uint32_t bytes);

}  // namespace softhca::abi
