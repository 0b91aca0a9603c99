#include "pcie/tlp_header.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "base/range.h"

namespace softhca::pcie {
namespace {

constexpr std::uint64_t kDw = 4;
constexpr std::uint32_t kMostBytes = 4096;

std::uint16_t dws_touched(BusAddr at, std::uint64_t bytes) {
  return static_cast<std::uint16_t>((offset_in(at, kDw) + bytes + kDw - 1) / kDw);
}

TlpHeader answer(TlpKind kind, const Tlp& piece, std::uint32_t byte_count, RequesterId requester,
                 std::uint8_t tag) {
  TlpHeader header;
  header.kind = kind;
  header.requester = requester;
  header.tag = tag;
  header.byte_count = static_cast<std::uint16_t>(byte_count);
  header.lower_address = static_cast<std::uint8_t>(piece.at.value & 0x7f);
  if (kind == TlpKind::Completion)
    header.length_dw = dws_touched(piece.at, piece.bytes);
  else
    header.status = CompletionStatus::UnsupportedRequest;
  return header;
}

std::uint32_t bytes_left(const Tlp& piece, const Tlp& read) {
  ASSERT(piece.at >= read.at && distance(read.at, piece.at) < read.bytes);
  return read.bytes - static_cast<std::uint32_t>(distance(read.at, piece.at));
}

std::string id_text(RequesterId id) {
  return fmt::format("{:02x}:{:02x}.{}", id.value >> 8, id.value >> 3 & 0x1f, id.value & 7);
}

void emit_tlp(trace::Tracer& tracer, const Tlp& tlp, const TlpHeader& header, Time now) {
  tracer.emit(trace::EventKind::Tlp, now, std::uint32_t{header.requester.value} << 16 | header.tag,
              static_cast<std::uint64_t>(tlp.kind), tlp.at.value, tlp.bytes, header.byte_count,
              static_cast<std::uint64_t>(header.status));
}

// Calls `with(tlp, header)` for each TLP of an access.
template <class With>
void each_header(const Access& access, const LinkLimits& limits, RequesterId requester,
                 std::uint8_t& tag, With with) {
  Tlp read;
  std::uint8_t read_tag = 0;
  for (const Tlp& tlp : list_tlps(access, limits)) {
    if (tlp.kind == TlpKind::Completion) {
      with(tlp, completion_header(tlp, read, requester, read_tag));
      continue;
    }
    const bool is_read = tlp.kind == TlpKind::MemoryRead;
    if (is_read) {
      read = tlp;
      read_tag = tag++;
    }
    with(tlp, request_header(tlp, requester, is_read ? read_tag : std::uint8_t{0}));
  }
}

}  // namespace

TlpHeader request_header(const Tlp& request, RequesterId requester, std::uint8_t tag) {
  ASSERT(request.bytes > 0 && request.bytes <= kMostBytes);
  const auto offset = static_cast<unsigned>(offset_in(request.at, kDw));
  const auto end = static_cast<unsigned>((offset + request.bytes - 1) % kDw);  // of the last byte
  TlpHeader header;
  header.kind = request.kind;
  header.requester = requester;
  header.tag = tag;
  header.address = align_down(request.at, kDw);
  header.length_dw = dws_touched(request.at, request.bytes);
  const unsigned from_first = 0xfu << offset & 0xfu;
  const unsigned to_last = 0xfu >> (kDw - 1 - end);
  const bool single = header.length_dw == 1;
  header.first_enable = static_cast<std::uint8_t>(single ? from_first & to_last : from_first);
  header.last_enable = static_cast<std::uint8_t>(single ? 0 : to_last);
  return header;
}

TlpHeader completion_header(const Tlp& piece, const Tlp& read, RequesterId requester,
                            std::uint8_t tag) {
  return answer(TlpKind::Completion, piece, bytes_left(piece, read), requester, tag);
}

TlpHeader unsupported_header(const Tlp& read, RequesterId requester, std::uint8_t tag) {
  return answer(TlpKind::Refusal, read, read.bytes, requester, tag);
}

std::vector<TlpHeader> list_headers(const Access& access, const LinkLimits& limits,
                                    RequesterId requester, std::uint8_t& tag) {
  std::vector<TlpHeader> headers;
  each_header(access, limits, requester, tag,
              [&](const Tlp&, const TlpHeader& header) { headers.push_back(header); });
  return headers;
}

std::string tlp_text(const TlpHeader& tlp) {
  const std::string from = id_text(tlp.requester);
  switch (tlp.kind) {
    case TlpKind::MemoryRead:
      return fmt::format("MRd  {} tag {:#04x} addr {:#x} {} DW be {:x}/{:x}", from, tlp.tag,
                         tlp.address.value, tlp.length_dw, tlp.first_enable, tlp.last_enable);
    case TlpKind::MemoryWrite:
      return fmt::format("MWr  {} addr {:#x} {} DW be {:x}/{:x}", from, tlp.address.value,
                         tlp.length_dw, tlp.first_enable, tlp.last_enable);
    case TlpKind::Completion:
      return fmt::format("CplD {} -> {} tag {:#04x} {} DW, {} bytes left, lower address {:#04x}",
                         id_text(tlp.completer), from, tlp.tag, tlp.length_dw, tlp.byte_count,
                         tlp.lower_address);
    case TlpKind::Refusal:
      return fmt::format("Cpl  {} -> {} tag {:#04x} unsupported request, {} bytes left",
                         id_text(tlp.completer), from, tlp.tag, tlp.byte_count);
    case TlpKind::Message:
      return fmt::format("Msg  {} code {:#04x}", from, tlp.message_code);
  }
  return "?";
}

void emit_tlps(trace::Tracer& tracer, const Access& access, const LinkLimits& limits,
               RequesterId requester, std::uint8_t& tag, Time now) {
  each_header(access, limits, requester, tag,
              [&](const Tlp& tlp, const TlpHeader& header) { emit_tlp(tracer, tlp, header, now); });
}

void emit_refused(trace::Tracer& tracer, const Access& access, const LinkLimits& limits,
                  RequesterId requester, std::uint8_t& tag, Time now) {
  if (access.bytes == 0) return;
  const bool is_read = access.direction == Direction::Read;
  const std::uint64_t to_boundary = kPage4K - offset_in(access.at, kPage4K);
  const std::uint64_t most = is_read ? limits.mrrs : limits.mps;
  const Tlp request{is_read ? TlpKind::MemoryRead : TlpKind::MemoryWrite, access.at,
                    static_cast<std::uint32_t>(std::min({access.bytes, most, to_boundary}))};
  const std::uint8_t own_tag = is_read ? tag++ : std::uint8_t{0};
  emit_tlp(tracer, request, request_header(request, requester, own_tag), now);
  if (!is_read) return;
  const Tlp refusal{TlpKind::Refusal, request.at, request.bytes};
  emit_tlp(tracer, refusal, unsupported_header(request, requester, own_tag), now);
}

std::optional<TlpHeader> tlp_of_event(const trace::Event& event) {
  if (event.kind != trace::EventKind::Tlp) return std::nullopt;
  const auto [kind, bus, bytes, byte_count, status] = event.fields;
  if (kind > static_cast<std::uint64_t>(TlpKind::Message) || bytes > kMostBytes ||
      byte_count > kMostBytes)
    return std::nullopt;
  const Tlp tlp{static_cast<TlpKind>(kind), {bus}, static_cast<std::uint32_t>(bytes)};
  const RequesterId requester{static_cast<std::uint16_t>(event.object >> 16)};
  const auto tag = static_cast<std::uint8_t>(event.object);
  if (tlp.kind == TlpKind::Message) {
    TlpHeader header;
    header.kind = TlpKind::Message;
    header.requester = requester;
    return header;
  }
  if (tlp.bytes == 0) return std::nullopt;
  if (tlp.kind == TlpKind::MemoryRead || tlp.kind == TlpKind::MemoryWrite)
    return request_header(tlp, requester, tag);
  TlpHeader header = answer(tlp.kind, tlp, static_cast<std::uint32_t>(byte_count), requester, tag);
  header.status = static_cast<CompletionStatus>(status);
  return header;
}

}  // namespace softhca::pcie
