// Entry points: how a function becomes a versioned symbol, and what no call lets out.
//
// An entry point is written as
//
//   VERB("IBVERBS_1.1", int, ibv_dealloc_pd, (ibv_pd* pd)) {
//     return answer_errno([&]() -> Outcome<void> { ... });
//   }
//
// and is called entry_ibv_dealloc_pd inside: calls among our own functions never go through a
// symbol that another library could take over, and the header's macros of the same name do not get
// in the way. The symbol that programs link with is made by the assembler; the signature is held
// against the header's declaration.
//
// Invariants  no exception leaves an entry point: out of memory is ENOMEM, a broken assertion EIO
#pragma once
#include <cerrno>
#include <cstdint>
#include <new>
#include <type_traits>

#include "abi/errno_of.h"
#include "base/assert.h"

namespace softhca::abi {

// Where the program calls the entry point that this is used in.
[[gnu::always_inline]] inline std::uintptr_t caller_of_this() {
  return reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
}

template <class Call>
auto caught(Call&& call) -> std::invoke_result_t<Call> {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Errno{ENOMEM};
  } catch (const AssertionFailed&) {
    return Errno{EIO};
  }
}

// 0, or a positive errno. `call` gives Outcome<void>.
template <class Call>
int answer_errno(Call&& call) {
  const auto outcome = caught(call);
  return outcome ? 0 : (errno = outcome.error().code);
}

// The pointer, or NULL and errno. `call` gives Outcome<T*>.
template <class Call>
auto answer_pointer(Call&& call) {
  auto outcome = caught(call);
  using Pointer = std::remove_cvref_t<decltype(*outcome)>;
  if (outcome) return *outcome;
  errno = outcome.error().code;
  return Pointer{};
}

// A number that is not negative, or -1 and errno. `call` gives Outcome of such a number.
template <class Call>
auto answer_minus_one(Call&& call) {
  const auto outcome = caught(call);
  using Number = std::remove_cvref_t<decltype(*outcome)>;
  if (outcome) return *outcome;
  errno = outcome.error().code;
  return static_cast<Number>(-1);
}

}  // namespace softhca::abi

#define SOFTHCA_VERSIONED(node, name, symbol) asm(".symver " #name ", " #symbol node)

// A default symbol of one node, without a declaration to hold it against.
#define SOFTHCA_ENTRY(node, result, name, parameters, exceptions)                      \
  extern "C" [[gnu::visibility("default")]] result entry_##name parameters exceptions; \
  SOFTHCA_VERSIONED("@@" node, entry_##name, name);                                    \
  extern "C" result entry_##name parameters exceptions

// A symbol of the nodes that providers link with; the newer ones only have another label.
#define SOFTHCA_PRIVATE(result, name, parameters)                                    \
  extern "C" [[gnu::visibility("default")]] result entry_##name parameters noexcept; \
  SOFTHCA_IN_PRIVATE_NODES(entry_##name, name);                                      \
  extern "C" result entry_##name parameters noexcept

#define SOFTHCA_IN_PRIVATE_NODES(name, symbol)             \
  SOFTHCA_VERSIONED("@@IBVERBS_PRIVATE_34", name, symbol); \
  SOFTHCA_VERSIONED("@IBVERBS_PRIVATE_57", name, symbol);  \
  SOFTHCA_VERSIONED("@IBVERBS_PRIVATE_59", name, symbol);  \
  SOFTHCA_VERSIONED("@IBVERBS_PRIVATE_64", name, symbol)

#define SOFTHCA_MATCHES_HEADER(result, name, parameters)                 \
  static_assert(std::is_same_v<result(*) parameters, decltype(&::name)>, \
                #name " differs from its declaration in the header")

#define VERB(node, result, name, parameters)        \
  SOFTHCA_MATCHES_HEADER(result, name, parameters); \
  SOFTHCA_ENTRY(node, result, name, parameters, noexcept)

// For calls that block: a thread may be cancelled in them, which unwinds as an exception does.
#define BLOCKING_VERB(node, result, name, parameters) \
  SOFTHCA_MATCHES_HEADER(result, name, parameters);   \
  SOFTHCA_ENTRY(node, result, name, parameters, )
