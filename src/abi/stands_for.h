// How a preloaded library puts a function of its own in front of one of libc's.
//
// Gives the function the name of libc's. The header's declaration of that name does not get in the
// way, and names that no header has are no different.
#pragma once

#define SOFTHCA_STANDS_FOR(symbol, function) \
  asm(".globl " #symbol "\n.type " #symbol ", @function\n.set " #symbol ", " #function)
#define SOFTHCA_HOOK extern "C" [[gnu::used]]
