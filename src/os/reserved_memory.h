// Reserved memory: a large stretch of address space whose pages exist from their first use on.
#pragma once
#include "base/bytes.h"

namespace softhca::os {

// Readable and writable, zero, not charged until used. As much as can be had, from 64 GiB down to
// 64 MiB; empty if not even that. In the child of a fork all of it is zero again, and the parent
// does not pay for a copy.
Bytes reserve_memory();
void release_reserved(Bytes memory);

// Gives the pages back to the kernel; they read as zeros when used again. REQUIRES: page aligned.
void discard_pages(Bytes pages);

}  // namespace softhca::os
