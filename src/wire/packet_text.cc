#include "wire/packet_text.h"

#include <fmt/format.h>

#include <iterator>

namespace softhca::wire {
namespace {

std::string_view nak_name(std::uint8_t code) {
  switch (static_cast<NakCode>(code)) {
    case NakCode::SequenceError:
      return "sequence error";
    case NakCode::InvalidRequest:
      return "invalid request";
    case NakCode::RemoteAccess:
      return "remote access";
    case NakCode::RemoteOperational:
      return "remote operational";
    case NakCode::InvalidRdRequest:
      return "invalid RD request";
  }
  return "reserved";
}

std::string aeth_text(const Headers& h) {
  std::string text;
  switch (h.aeth_kind) {
    case AethKind::Ack:
      text = fmt::format("credit {}", h.aeth_value);
      break;
    case AethKind::RnrNak:
      text = fmt::format("RNR NAK timer {}", h.aeth_value);
      break;
    case AethKind::Nak:
      text = fmt::format("NAK {} ({})", h.aeth_value, nak_name(h.aeth_value));
      break;
    default:
      text = fmt::format("reserved syndrome {}", h.aeth_value);
      break;
  }
  return text + fmt::format(" msn {}", h.msn.value);
}

std::string extension_text(Header header, const Headers& h) {
  switch (header) {
    case Header::None:
      break;
    case Header::Deth:
      return fmt::format("qkey {:#x} src_qp {:#08x}", h.qkey, h.source_qpn.value);
    case Header::Xrceth:
      return fmt::format("srq {:#08x}", h.xrc_srqn);
    case Header::Reth:
      return fmt::format("va {:#x} rkey {:#x} len {}", h.remote_address, h.rkey.value,
                         h.dma_length);
    case Header::AtomicEth:
      return fmt::format("va {:#x} rkey {:#x} swap/add {:#x} cmp {:#x}", h.remote_address,
                         h.rkey.value, h.swap_or_add, h.compare);
    case Header::Aeth:
      return aeth_text(h);
    case Header::AtomicAckEth:
      return fmt::format("orig {:#x}", h.original);
    case Header::Imm:
      return fmt::format("imm {:#x}", h.immediate);
    case Header::Ieth:
      return fmt::format("inv {:#x}", h.invalidate_key.value);
    case Header::Feth:
      return fmt::format("feth {:#x}", h.flush);
  }
  return {};
}

}  // namespace

std::string packet_text(const Headers& headers, std::size_t payload_bytes) {
  const Bth& bth = headers.bth;
  const OpcodeInfo* info = find_opcode(bth.opcode);
  std::string text =
      info != nullptr ? std::string(info->name) : fmt::format("opcode {:#04x}", bth.opcode);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, " qp {:#08x} psn {:#08x}", bth.dest_qpn.value, bth.psn.value);
  if (bth.pkey != kDefaultPkey) fmt::format_to(out, " pkey {:#06x}", bth.pkey);
  if (bth.ack_request) text += " A";
  if (bth.solicited) text += " SE";
  if (bth.fecn) text += " FECN";
  if (bth.becn) text += " BECN";
  if (info != nullptr) {
    for (const Header header : info->headers)
      if (header != Header::None) text += ' ' + extension_text(header, headers);
  }
  if (info == nullptr || info->has_payload) fmt::format_to(out, " data {}", payload_bytes);
  if (bth.pad != 0) fmt::format_to(out, " pad {}", bth.pad);
  return text;
}

}  // namespace softhca::wire
