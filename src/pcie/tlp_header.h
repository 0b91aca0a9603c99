// TlpHeader: what a TLP says about itself.
//
//   MRd, MWr  address of the first double word, length in double words, and which bytes of the
//             first and the last one are meant
//   CplD      answers the read of the same requester and tag; how many bytes of it are still
//             missing (these included), and the low bits of the first one's address
//   Cpl       the same without bytes, since there are none: Unsupported Request
//   Msg       goes to no address
//
// Spec      PCI Express Base, 2.2.1 to 2.2.9
// See also  pcie/tlp.h cuts an access into them
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pcie/port.h"
#include "pcie/tlp.h"
#include "trace/journal.h"

namespace softhca::pcie {

enum class CompletionStatus : std::uint8_t {
  Success = 0,
  UnsupportedRequest = 1,
  ConfigRetry = 2,
  CompleterAbort = 4,
};

inline constexpr RequesterId kRootComplex{0};  // 00:00.0

struct TlpHeader {
  TlpKind kind{};
  RequesterId requester;
  std::uint8_t tag{};
  std::uint16_t length_dw{};  // of payload carried or asked for; at most 1024
  // Requests.
  BusAddr address;  // a multiple of 4
  std::uint8_t first_enable{};
  std::uint8_t last_enable{};  // 0: there is only one double word
  // Completions.
  RequesterId completer{kRootComplex};
  CompletionStatus status = CompletionStatus::Success;
  std::uint16_t byte_count{};     // 1 to 4096
  std::uint8_t lower_address{};   // 7 bits
  std::uint8_t message_code = 0;  // Msg

  // Three double words, or four for an address that does not fit 32 bits, and for messages.
  unsigned header_dw() const {
    return kind == TlpKind::Message || address.value >> 32 != 0 ? 4 : 3;
  }
  friend bool operator==(const TlpHeader&, const TlpHeader&) = default;
};

// REQUIRES: a request of list_tlps().
TlpHeader request_header(const Tlp& request, RequesterId requester, std::uint8_t tag);
// `piece` answers `read`. REQUIRES: both of list_tlps(), piece within read.
TlpHeader completion_header(const Tlp& piece, const Tlp& read, RequesterId requester,
                            std::uint8_t tag);
// The answer to a read that nobody serves.
TlpHeader unsupported_header(const Tlp& read, RequesterId requester, std::uint8_t tag);

// All TLPs of an access; its reads take tags from `tag` on, which is left at the next one.
std::vector<TlpHeader> list_headers(const Access& access, const LinkLimits& limits,
                                    RequesterId requester, std::uint8_t& tag);

// "MRd  01:00.0 tag 0x05 addr 0x7000000f80 128 DW be f/f"
// "CplD 00:00.0 -> 01:00.0 tag 0x05 64 DW, 512 bytes left, lower address 0x00"
std::string tlp_text(const TlpHeader& tlp);

// Records every TLP of an access (EventKind::Tlp).
void emit_tlps(trace::Tracer& tracer, const Access& access, const LinkLimits& limits,
               RequesterId requester, std::uint8_t& tag, Time now);
// The same for an access that nobody serves: its first request, and for a read the refusal. A
// posted write vanishes: nothing comes back.
void emit_refused(trace::Tracer& tracer, const Access& access, const LinkLimits& limits,
                  RequesterId requester, std::uint8_t& tag, Time now);
// The TLP that an event records; nothing for other events, or one that makes no sense.
std::optional<TlpHeader> tlp_of_event(const trace::Event& event);

}  // namespace softhca::pcie
