// Queries that programs reach through function pointers of the context.
//
// Threads  any
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "abi/layout.h"
#include "driver/attributes.h"

namespace softhca::abi {

// Fills in as much as the caller's header knows of and zeroes the rest of `size`.
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, std::size_t size) noexcept;
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size) noexcept;

// The newest layout.
PortLayout as_verbs(const driver::PortAttributes& port);

// The symbols behind two of the pointers that 2006's headers knew.
extern "C" int entry_ibv_query_device(ibv_context* context, ibv_device_attr* attributes) noexcept;
extern "C" int entry_ibv_query_port(ibv_context* context, std::uint8_t port,
                                    _compat_ibv_port_attr* attributes) noexcept;

}  // namespace softhca::abi
