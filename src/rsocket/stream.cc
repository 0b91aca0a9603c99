#include "rsocket/stream.h"

#include <algorithm>
#include <bit>

namespace softhca::rsocket {
namespace {

constexpr std::uint32_t kListed = 2;       // buffers in the list: the halves of a ring
constexpr std::uint32_t kNotices = 4;      // requests that are kept for them
constexpr std::uint32_t kLowWater = 2048;  // free bytes of the send ring from which on one may send
constexpr std::size_t kLargestWrite = 1u << 16;

constexpr std::uint32_t kRequestsMin = 16;
constexpr std::uint32_t kRequestsMax = 0xfffe;  // credits are counted in 16 bits
constexpr std::uint32_t kRingMin = 2 * kLowWater;
constexpr std::uint32_t kRingMax = 1u << (kValueBits - 1);

std::uint32_t tag_of(Kind kind, std::uint32_t value) { return immediate_of({kind, value}); }

// Counters of 16 bits that wrap: whether `count` has come to `mark`.
bool has_reached(std::uint16_t count, std::uint16_t mark) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(count - mark)) >= 0;
}

// The words of an entry that a peer writes as we read. It is written from its start to its end, so
// whoever sees the length sees the address.
std::uint64_t* words_of(Bytes entry) { return reinterpret_cast<std::uint64_t*>(entry.data()); }

}  // namespace

StreamShape possible_shape(StreamShape wished) {
  wished.sends = std::clamp(wished.sends, kRequestsMin, kRequestsMax);
  wished.receives = std::clamp(wished.receives, kRequestsMin, kRequestsMax);
  wished.send_bytes = std::clamp(wished.send_bytes, kRingMin, kRingMax);
  wished.receive_bytes = std::clamp(wished.receive_bytes, kRingMin, kRingMax) & ~1u;
  wished.mappings = tellable_mappings(wished.mappings);
  return wished;
}

std::size_t list_bytes(const StreamShape& shape) {
  return kListed * kBufferBytes + shape.mappings * kMappingBytes;
}

std::size_t Pace::next(std::size_t left) {
  if (left <= bytes_) return left;
  return std::exchange(bytes_, std::min(2 * bytes_, kLargestWrite));
}

Stream::Stream(const StreamShape& shape, const StreamMemory& memory)
    : shape_(shape), memory_(memory), ring_free_(shape.send_bytes) {
  ASSERT(shape == possible_shape(shape) && memory.list.size() == list_bytes(shape));
  ASSERT(std::bit_cast<std::uintptr_t>(memory.list.data()) % alignof(std::uint64_t) == 0);
  const std::uint32_t half = shape.receive_bytes / 2;
  offered_ = emptied_ = offer_at_ = half;
  credits_due_ = static_cast<std::uint16_t>(shape.receives / 2);
}

Greeting Stream::greeting() const {
  return {.maps = true,
          .credits = static_cast<std::uint16_t>(shape_.receives),
          .mappings = shape_.mappings,
          .list = {memory_.list_address, memory_.list_key, kListed},
          .first = {memory_.ring_address, memory_.ring_key, shape_.receive_bytes / 2}};
}

void Stream::begin(const Greeting& peer) {
  ASSERT(phase_ == Phase::Greeting);
  phase_ = Phase::Open;
  peer_swaps_ = peer.big_endian;
  peer_list_ = peer.list;
  peer_mappings_ = peer.mappings;
  target_ = peer.first;
  granted_ = peer.credits;
  target_entry_ = peer_entry_ = 1;  // entry 0 was in the greetings
}

void Stream::on_message(std::uint32_t immediate) {
  const Message message = message_of(immediate);
  if (!is_open()) return;
  switch (message.kind) {
    case Kind::Credits:
      granted_ = static_cast<std::uint16_t>(message.value);
      return find_target();
    case Kind::Control:
      return on_control(message.value);
    case Kind::Mapped:
      ++received_;
      return;
    case Kind::Bytes:
      ++received_;
      if (message.value > offered_) return on_failure();
      offered_ -= message.value;
      readable_ += message.value;
      return;
    default:  // of a kind to come
      return;
  }
}

void Stream::on_control(std::uint32_t value) {
  if (value == static_cast<std::uint32_t>(Control::Disconnect)) phase_ = Phase::Ended;
  if (value != static_cast<std::uint32_t>(Control::Shutdown)) return;
  receives_ = false;
  if (wanted_)
    wanted_ = Control::Disconnect;  // the peer has not heard yet that this end sends no more
  else if (!sends_)
    phase_ = Phase::Ended;
}

void Stream::on_sent(std::uint32_t tag) {
  const Message message = message_of(tag);
  if (message.kind == Kind::Credits || message.kind == Kind::Control) {
    ASSERT(notices_under_way_ > 0);
    --notices_under_way_;
    if (message == Message{Kind::Control, static_cast<std::uint32_t>(Control::Disconnect)} &&
        is_open())
      phase_ = Phase::Ended;
    return;
  }
  ASSERT(writes_under_way_ > 0);
  --writes_under_way_;
  if (message.kind != Kind::Mapped) ring_free_ += message.value;
  ASSERT(ring_free_ <= shape_.send_bytes);
}

void Stream::on_failure() {
  if (is_open() || phase_ == Phase::Greeting) phase_ = Phase::Failed;
}

void Stream::on_gone() {
  if (is_open()) phase_ = Phase::Ended;
}

bool Stream::can_place() const {
  return may_send() && writes_under_way_ + kNotices < shape_.sends && ring_free_ >= kLowWater;
}

bool Stream::can_send() const { return can_place() && sent_ != granted_ && target_.length != 0; }

Slices Stream::take_ring(std::uint32_t bytes) {
  const std::uint32_t first = std::min(bytes, shape_.send_bytes - ring_at_);
  const Slices slices{{{ring_at_, first}, {0, bytes - first}}};
  ring_at_ = first < bytes ? bytes - first : (ring_at_ + first) % shape_.send_bytes;
  ring_free_ -= bytes;
  ++writes_under_way_;
  return slices;
}

Request Stream::take_write(std::size_t bytes) {
  ASSERT(can_send() && bytes > 0);
  const auto taken =
      static_cast<std::uint32_t>(std::min<std::size_t>({bytes, ring_free_, target_.length}));
  const Request request{.slices = take_ring(taken),
                        .address = target_.address,
                        .key = target_.key,
                        .immediate = immediate_of({Kind::Bytes, taken}),
                        .tag = tag_of(Kind::Bytes, taken)};
  ++sent_;
  target_.address += taken;
  target_.length -= taken;
  find_target();
  return request;
}

void Stream::find_target() {
  if (target_.length != 0) return;
  std::uint64_t* const words = words_of(memory_.list.subspan(target_entry_ * kBufferBytes));
  const std::uint64_t key_and_length = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
  const auto length = static_cast<std::uint32_t>(key_and_length >> 32);
  if (length == 0) return;
  target_ = {__atomic_load_n(&words[0], __ATOMIC_RELAXED),
             static_cast<std::uint32_t>(key_and_length), length};
  __atomic_store_n(&words[1], 0, __ATOMIC_RELAXED);  // the next one there is another buffer
  target_entry_ = (target_entry_ + 1) % kListed;
}

bool Stream::owes_credits() const {
  return receives_ &&
         (emptied_ >= shape_.receive_bytes / 2 || has_reached(received_, credits_due_));
}

std::optional<Request> Stream::poll_notice() {
  if (!is_open() || told_end_ || notices_under_way_ == kNotices) return {};
  if (wanted_) {
    told_end_ = *wanted_ == Control::Disconnect;
    return tell(*std::exchange(wanted_, std::nullopt));
  }
  if (owes_credits()) return tell_credits();
  if (!std::exchange(wants_keepalive_, false)) return {};
  Request request = tell(Control::Keepalive);
  request.immediate.reset();
  return request;
}

Request Stream::tell(Control control) {
  ++notices_under_way_;
  const std::uint32_t immediate =
      immediate_of({Kind::Control, static_cast<std::uint32_t>(control)});
  return {.immediate = immediate, .tag = immediate};
}

Request Stream::tell_credits() {
  ++notices_under_way_;
  const auto granted = static_cast<std::uint16_t>(received_ + shape_.receives);
  credits_due_ = static_cast<std::uint16_t>(received_ + shape_.receives / 2);
  Request request{.immediate = immediate_of({Kind::Credits, granted}),
                  .tag = tag_of(Kind::Credits, granted)};
  const std::uint32_t half = shape_.receive_bytes / 2;
  if (emptied_ < half) return request;

  store_buffer(request.text, {memory_.ring_address + offer_at_, memory_.ring_key, half},
               peer_swaps_);
  request.text_bytes = kBufferBytes;
  request.address = peer_list_.address + peer_entry_ * kBufferBytes;
  request.key = peer_list_.key;
  emptied_ -= half;
  offered_ += half;
  offer_at_ = half - offer_at_;
  peer_entry_ = peer_entry_ + 1 < peer_list_.length ? peer_entry_ + 1 : 0;
  return request;
}

void Stream::map(std::uint32_t entry, const Mapping& mapping) {
  ASSERT(entry < peer_mappings_);
  unsent_mappings_.emplace_back(entry, mapping);
}

Request Stream::take_mapping() {
  ASSERT(can_send() && has_mapping());
  const auto [entry, mapping] = unsent_mappings_.front();
  unsent_mappings_.pop_front();
  Request request{
      .text_bytes = kMappingBytes,
      .address = peer_list_.address + peer_list_.length * kBufferBytes + entry * kMappingBytes,
      .key = peer_list_.key,
      .immediate = immediate_of({Kind::Mapped, entry}),
      .tag = tag_of(Kind::Mapped, entry)};
  store_mapping(request.text, mapping, peer_swaps_);
  ++sent_;
  ++writes_under_way_;
  return request;
}

std::optional<Request> Stream::take_placement(std::uint64_t offset, std::size_t bytes) {
  ASSERT(can_place() && bytes > 0);
  for (std::uint32_t entry = 0; entry < shape_.mappings; ++entry) {
    const Mapping mapping =
        load_mapping(memory_.list.subspan(kListed * kBufferBytes + entry * kMappingBytes));
    const std::uint64_t into = offset - mapping.offset;
    if (offset < mapping.offset || into >= mapping.buffer.length) continue;
    const auto taken = static_cast<std::uint32_t>(
        std::min<std::uint64_t>({bytes, ring_free_, mapping.buffer.length - into}));
    return Request{.slices = take_ring(taken),
                   .address = mapping.buffer.address + into,
                   .key = mapping.buffer.key,
                   .tag = tag_of(Kind::Placed, taken)};
  }
  return {};
}

Slices Stream::readable(std::size_t bytes, std::uint32_t after) const {
  ASSERT(after <= readable_);
  const auto all = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, readable_ - after));
  const std::uint32_t at = (read_at_ + after) % shape_.receive_bytes;
  const std::uint32_t first = std::min(all, shape_.receive_bytes - at);
  return {{{at, first}, {0, all - first}}};
}

void Stream::take_bytes(std::uint32_t bytes) {
  ASSERT(bytes <= readable_);
  read_at_ = (read_at_ + bytes) % shape_.receive_bytes;
  readable_ -= bytes;
  emptied_ += bytes;
}

void Stream::shut_sending() {
  if (!is_open() || !std::exchange(sends_, false)) return;
  wanted_ = receives_ ? Control::Shutdown : Control::Disconnect;
}

void Stream::shut_receiving() {
  if (!is_open()) return;
  receives_ = false;
  if (!sends_) wanted_ = Control::Disconnect;
}

bool Stream::is_quiet() const {
  return !is_open() || (writes_under_way_ == 0 && notices_under_way_ == 0 && !wanted_);
}

}  // namespace softhca::rsocket
