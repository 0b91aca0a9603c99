#include "wire/cm_message.h"

#include <algorithm>
#include <concepts>
#include <type_traits>

#include "base/cursor.h"

namespace softhca::wire {
namespace {

// IBTA 13.4.2
constexpr std::uint8_t kBaseVersion = 1, kClassCm = 0x07, kClassVersion = 2, kMethodSend = 0x03;

// `kWidth` bits of a word next to its neighbours; of a number that does not stand together, those
// from bit `kShift` on.
template <unsigned kWidth, unsigned kShift, class T>
struct Bits {
  static constexpr unsigned kBits = kWidth;
  static constexpr std::uint64_t kMask = (std::uint64_t{1} << kWidth) - 1;
  T& value;
};
template <unsigned kWidth, unsigned kShift = 0, class T>
Bits<kWidth, kShift, T> bits(T& value) {
  return {value};
}
template <unsigned kWidth>
struct Reserved {
  static constexpr unsigned kBits = kWidth;
};

// Both directions have the same vocabulary: `word` takes fields from the highest bit down.
class FieldReader {
 public:
  explicit FieldReader(Cursor& cursor) : cursor_(cursor) {}

  template <class Word, class... Parts>
  void word(Parts... parts) {
    static_assert((Parts::kBits + ...) == sizeof(Word) * 8);
    const std::uint64_t all = cursor_.take_be<Word>();
    unsigned below = sizeof(Word) * 8;
    (take(all >> (below -= Parts::kBits), parts), ...);
  }
  template <std::unsigned_integral T>
  void whole(T& value) {
    value = cursor_.take_be<T>();
  }
  void bytes(Bytes to) { std::ranges::copy(cursor_.take(to.size()), to.begin()); }
  void gid(Gid& gid) { bytes(std::as_writable_bytes(std::span(gid.bytes))); }
  void skip(std::size_t n) { cursor_.take(n); }

 private:
  // The value was 0 before.
  template <unsigned kWidth, unsigned kShift, class T>
  static void take(std::uint64_t from, Bits<kWidth, kShift, T> part) {
    part.value =
        static_cast<T>(static_cast<std::uint64_t>(part.value) | (from & part.kMask) << kShift);
  }
  template <unsigned kWidth>
  static void take(std::uint64_t, Reserved<kWidth>) {}

  Cursor& cursor_;
};

class FieldWriter {
 public:
  explicit FieldWriter(Bytes out) : out_(out) {}

  template <class Word, class... Parts>
  void word(Parts... parts) {
    static_assert((Parts::kBits + ...) == sizeof(Word) * 8);
    std::uint64_t all = 0;
    unsigned below = sizeof(Word) * 8;
    ((all |= of(parts) << (below -= Parts::kBits)), ...);
    whole(static_cast<Word>(all));
  }
  template <std::unsigned_integral T>
  void whole(T value) {
    store_be(out_, at_, value);
    at_ += sizeof value;
  }
  void bytes(ConstBytes from) {
    std::ranges::copy(from, out_.subspan(at_, from.size()).begin());
    at_ += from.size();
  }
  void gid(const Gid& gid) { bytes(std::as_bytes(std::span(gid.bytes))); }
  void skip(std::size_t n) { at_ += n; }
  std::size_t written() const { return at_; }

 private:
  template <unsigned kWidth, unsigned kShift, class T>
  static std::uint64_t of(Bits<kWidth, kShift, T> part) {
    return static_cast<std::uint64_t>(part.value) >> kShift & part.kMask;
  }
  template <unsigned kWidth>
  static std::uint64_t of(Reserved<kWidth>) {
    return 0;
  }

  Bytes out_;  // zeros
  std::size_t at_ = 0;
};

// `M` is the message, constant where it is written.
template <class M, class Message>
concept Is = std::same_as<std::remove_const_t<M>, Message>;

template <class Io, class M>
void lay_ids(Io& io, M& m) {
  io.whole(m.local_id.value);
  io.whole(m.remote_id.value);
}

template <class Io, Is<CmPath> M>
void lay(Io& io, M& m) {
  io.whole(m.local_lid);
  io.whole(m.remote_lid);
  io.gid(m.local_gid);
  io.gid(m.remote_gid);
  io.template word<std::uint32_t>(bits<20>(m.flow_label), Reserved<6>(), bits<6>(m.packet_rate));
  io.whole(m.traffic_class);
  io.whole(m.hop_limit);
  io.template word<std::uint8_t>(bits<4>(m.service_level), bits<1>(m.subnet_local), Reserved<3>());
  io.template word<std::uint8_t>(bits<5>(m.ack_timeout), Reserved<3>());
}

// Table 106
template <class Io, Is<CmReq> M>
void lay(Io& io, M& m) {
  io.whole(m.local_id.value);
  io.template word<std::uint32_t>(Reserved<8>(), bits<24>(m.vendor_id));
  io.whole(m.service.value);
  io.whole(m.ca_guid);
  io.skip(4);
  io.whole(m.qkey);
  io.template word<std::uint32_t>(bits<24>(m.qpn.value), bits<8>(m.responder_resources));
  io.template word<std::uint32_t>(bits<24>(m.local_eecn), bits<8>(m.initiator_depth));
  io.template word<std::uint32_t>(bits<24>(m.remote_eecn), bits<5>(m.remote_response_timeout),
                                  bits<2>(m.transport), bits<1>(m.flow_control));
  io.template word<std::uint32_t>(bits<24>(m.psn.value), bits<5>(m.local_response_timeout),
                                  bits<3>(m.retry_count));
  io.whole(m.pkey);
  io.template word<std::uint8_t>(bits<4>(m.path_mtu), bits<1>(m.rdc_exists),
                                 bits<3>(m.rnr_retry_count));
  io.template word<std::uint8_t>(bits<4>(m.max_cm_retries), bits<1>(m.srq),
                                 bits<3>(m.extended_transport));
  lay(io, m.primary);
  lay(io, m.alternate);
  io.bytes(m.private_bytes);
}

// Table 107
template <class Io, Is<CmMra> M>
void lay(Io& io, M& m) {
  lay_ids(io, m);
  io.template word<std::uint8_t>(bits<2>(m.subject), Reserved<6>());
  io.template word<std::uint8_t>(bits<5>(m.service_timeout), Reserved<3>());
  io.bytes(m.private_bytes);
}

// Table 108
template <class Io, Is<CmRej> M>
void lay(Io& io, M& m) {
  lay_ids(io, m);
  io.template word<std::uint8_t>(bits<2>(m.subject), Reserved<6>());
  io.template word<std::uint8_t>(bits<7>(m.additional_length), Reserved<1>());
  io.template word<std::uint16_t>(bits<16>(m.reason));
  io.bytes(m.additional);
  io.bytes(m.private_bytes);
}

// Table 110; the vendor's bytes as in the description of ECE.
template <class Io, Is<CmRep> M>
void lay(Io& io, M& m) {
  lay_ids(io, m);
  io.whole(m.qkey);
  io.template word<std::uint32_t>(bits<24>(m.qpn.value), bits<8, 16>(m.vendor_id));
  io.template word<std::uint32_t>(bits<24>(m.local_eecn), bits<8, 8>(m.vendor_id));
  io.template word<std::uint32_t>(bits<24>(m.psn.value), bits<8, 0>(m.vendor_id));
  io.whole(m.responder_resources);
  io.whole(m.initiator_depth);
  io.template word<std::uint8_t>(bits<5>(m.target_ack_delay), bits<2>(m.failover),
                                 bits<1>(m.flow_control));
  io.template word<std::uint8_t>(bits<3>(m.rnr_retry_count), bits<1>(m.srq), Reserved<4>());
  io.whole(m.ca_guid);
  io.bytes(m.private_bytes);
}

// Tables 111 and 113
template <class Io, class M>
requires Is<M, CmRtu> || Is<M, CmDrep>
void lay(Io& io, M& m) {
  lay_ids(io, m);
  io.bytes(m.private_bytes);
}

// Table 112
template <class Io, Is<CmDreq> M>
void lay(Io& io, M& m) {
  lay_ids(io, m);
  io.template word<std::uint32_t>(bits<24>(m.remote_qpn.value), Reserved<8>());
  io.bytes(m.private_bytes);
}

// Table 119
template <class Io, Is<CmSidrReq> M>
void lay(Io& io, M& m) {
  io.whole(m.request_id.value);
  io.whole(m.pkey);
  io.skip(2);
  io.whole(m.service.value);
  io.bytes(m.private_bytes);
}

// Table 120
template <class Io, Is<CmSidrRep> M>
void lay(Io& io, M& m) {
  io.whole(m.request_id.value);
  io.template word<std::uint8_t>(bits<8>(m.status));
  io.whole(m.additional_length);
  io.template word<std::uint16_t>(bits<16, 8>(m.vendor_id));
  io.template word<std::uint32_t>(bits<24>(m.qpn.value), bits<8, 0>(m.vendor_id));
  io.whole(m.service.value);
  io.whole(m.qkey);
  io.bytes(m.additional);
  io.bytes(m.private_bytes);
}

// False if `index` names no message.
template <class... Messages>
bool read_message(std::size_t index, FieldReader& io, std::variant<Messages...>& out) {
  std::size_t at = 0;
  const auto read_if = [&]<class M>(M message) {
    if (at++ != index) return false;
    lay(io, message);
    out = message;
    return true;
  };
  return (read_if(Messages{}) || ...);
}

}  // namespace

Result<CmMad, CmParseError> parse_cm(ConstBytes bytes) {
  if (bytes.size() != kMadBytes) return CmParseError::WrongLength;
  Cursor cursor(bytes);
  FieldReader io(cursor);
  std::uint8_t base_version = 0, management_class = 0, class_version = 0, method = 0;
  std::uint16_t attribute = 0;
  CmMad mad;
  io.whole(base_version);
  io.whole(management_class);
  io.whole(class_version);
  io.whole(method);
  io.skip(4);  // status and class specific
  io.whole(mad.transaction);
  io.whole(attribute);
  io.skip(2);
  io.whole(mad.modifier);
  if (base_version != kBaseVersion || management_class != kClassCm ||
      class_version != kClassVersion || method != kMethodSend)
    return CmParseError::NotCm;
  if (attribute < kFirstCmAttribute ||
      !read_message(attribute - std::size_t{kFirstCmAttribute}, io, mad.message))
    return CmParseError::UnknownAttribute;
  ASSERT(!cursor.failed() && cursor.left() == 0);  // every message is as long as the MAD
  return mad;
}

CmMadBytes emit_cm(const CmMad& mad) {
  CmMadBytes out{};
  FieldWriter io(out);
  io.whole(kBaseVersion);
  io.whole(kClassCm);
  io.whole(kClassVersion);
  io.whole(kMethodSend);
  io.skip(4);
  io.whole(mad.transaction);
  io.whole(static_cast<std::uint16_t>(kFirstCmAttribute + mad.message.index()));
  io.skip(2);
  io.whole(mad.modifier);
  std::visit([&](const auto& message) { lay(io, message); }, mad.message);
  ASSERT(io.written() == out.size());
  return out;
}

}  // namespace softhca::wire
