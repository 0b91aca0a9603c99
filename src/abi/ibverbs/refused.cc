// Symbols that answer that the operation is not offered.
#include "abi/entry.h"

#define SOFTHCA_SHARED extern "C" [[gnu::visibility("default")]]

// Callers pass what their operation takes; nothing of it is looked at.
SOFTHCA_SHARED int softhca_refuse_Number() noexcept { return errno = EOPNOTSUPP; }
SOFTHCA_SHARED void* softhca_refuse_Pointer() noexcept {
  errno = EOPNOTSUPP;
  return nullptr;
}
SOFTHCA_SHARED int softhca_refuse_MinusOne() noexcept {
  errno = EOPNOTSUPP;
  return -1;
}
SOFTHCA_SHARED void* softhca_refuse_Nothing() noexcept { return nullptr; }

// A flag that providers set; nothing looks at it.
extern "C" {
[[gnu::visibility("default")]] bool softhca_disassociate_flag = false;
}
SOFTHCA_IN_PRIVATE_NODES(softhca_disassociate_flag, verbs_allow_disassociate_destroy);

#define REFUSED(node, symbol, answer) SOFTHCA_VERSIONED("@@" node, softhca_refuse_##answer, symbol);
#define OLD(node, symbol, answer) SOFTHCA_VERSIONED("@" node, softhca_refuse_##answer, symbol);
#define PRIVATE(symbol, answer) SOFTHCA_IN_PRIVATE_NODES(softhca_refuse_##answer, symbol);
#define DRIVER(node, symbol) SOFTHCA_VERSIONED("@@" node, softhca_refuse_Nothing, symbol);
#include "abi/ibverbs/refused.inc"
