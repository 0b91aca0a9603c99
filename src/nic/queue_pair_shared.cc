// The side of a queue pair that takes receives which are not its own: shared queues; XRC, where
// each request names one; and queues that match tags, with the rendezvous, in which the device
// fetches the message by itself and tells the peer when it is done.
#include <algorithm>

#include "nic/queue_pair.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;
using transport::Status;
using transport::WorkOpcode;

wire::Service QueuePair::service() const {
  if (is_for_datagrams()) return wire::Service::Ud;
  if (context_.type == transport::QpType::Uc) return wire::Service::Uc;
  return transport::is_xrc(context_.type) ? wire::Service::Xrc : wire::Service::Rc;
}

// Only queues of the target's domain can be named.
void QueuePair::name_shared(std::uint32_t srqn) {
  named_ = shared_.find(srqn);
  if (named_ != nullptr && named_->context().xrcd != context_.xrcd) named_ = nullptr;
}

Reason QueuePair::check_shared_queue(std::uint32_t srqn) {
  if (named_ == nullptr) return {.id = ReasonId::XrcQueueUnknown, .object = srqn};
  if (named_->failed()) return {.id = ReasonId::SharedQueueFailed, .object = srqn};
  return {};
}

// A response leaves later than its request came; the queue may have gone since.
std::uint32_t QueuePair::domain_of(const transport::PayloadRef& region) {
  if (context_.xrcd == 0) return context_.pd;
  name_shared(region.srqn);
  return domain_in_hand();
}

std::optional<transport::ReceiveSlot> QueuePair::take_receive() {
  std::optional<transport::ReceiveSlot> slot;
  if (faults_ != nullptr && request_ != nullptr) [[unlikely]]
    if (faults_->denies_receive(context_.qpn, *request_, now_)) return slot;
  if (!shares_receives()) {
    slot = receives_.take(receive_, context_.qpn, now_);
  } else {
    SharedReceiveQueue* const from = context_.srqn != 0 ? shared_.find(context_.srqn) : named_;
    if (from != nullptr && from->tags() != nullptr && is_send_in_hand_)
      slot = take_tagged(*from);
    else if (from != nullptr)
      slot = from->take(receive_, context_.qpn, now_);
  }
  if (slot) ready_at_ = later(ready_at_, receive_.ready_at);
  return slot;
}

namespace {

constexpr std::uint8_t bits_of(CqeFlag flag) { return static_cast<std::uint8_t>(flag); }

}  // namespace

// The message's first packet is in hand, and its headers with it: they are smaller than any MTU.
std::optional<transport::ReceiveSlot> QueuePair::take_tagged(SharedReceiveQueue& from) {
  if (from.failed()) return std::nullopt;
  TagList& tags = *from.tags();
  const auto tag = TagHeader::of(payload_);
  const auto message = RendezvousHeader::of(payload_);
  const bool is_eager = tag && tag->operation == TagOperation::Eager;
  const bool is_rendezvous = tag && tag->operation == TagOperation::Rendezvous && message;
  const auto entry = is_eager        ? tags.match(tag->tag, 0)
                     : is_rendezvous ? tags.match(tag->tag, message->length)
                                     : std::nullopt;
  if (!entry) {
    const auto slot = from.take(receive_, context_.qpn, now_);
    if (!slot) return std::nullopt;
    receive_.kind = is_eager || is_rendezvous ? CqeKind::ReceiveTagged : CqeKind::ReceiveUntagged;
    receive_.tag = receive_.private_word = 0;
    if (is_eager || is_rendezvous) tags.note_unexpected();
    return slot;
  }
  transport::ReceiveSlot slot{.work = entry->handle, .capacity_bytes = 0, .broken = {}};
  receive_ = {.cookie = entry->cookie,
              .work = entry->handle,
              .pd = from.context().pd,
              .cqn = from.context().cqn,
              .segments = entry->segments,
              .ready_at = now_,
              .kind = CqeKind::ReceiveTagged,
              .flags = bits_of(CqeFlag::TagMatched),
              .tag = tag->tag,
              .private_word = tag->private_word};
  for (const Segment& s : entry->segments) {
    if (slot.broken || s.bytes == 0) continue;
    slot.broken = memory_.check({.key = {s.lkey},
                                 .pd = receive_.pd,
                                 .right = KeyRight::LocalWrite,
                                 .address = s.address,
                                 .bytes = s.bytes},
                                context_.qpn, now_);
  }
  if (is_eager) {
    receive_.flags |= bits_of(CqeFlag::TagDataHere);
    receive_.skipped = TagHeader::kBytes;
    slot.capacity_bytes = TagHeader::kBytes + entry->bytes();
  } else {
    receive_.elsewhere = message;
    slot.capacity_bytes = kMaxRendezvousBytes;
    if (!slot.broken && !requester_)  // in RTR it receives only
      slot.broken = {.id = trace::ReasonId::QpNotReady, .object = context_.qpn.value};
  }
  return slot;
}

// What asks for it has been received. Numbers of its own, half a circle away from those of requests
// that the program posts.
void QueuePair::start_rendezvous() {
  const RendezvousHeader& message = *receive_.elsewhere;
  Rendezvous own;
  own.work = send_done_ + 0x4000'0000 + rendezvous_next_++ % 0x1000'0000;
  own.receive = receive_;
  own.receive.flags = bits_of(CqeFlag::TagDataHere);
  std::uint32_t left = message.length;
  for (Segment s : receive_.segments) {
    s.bytes = std::min(s.bytes, left);
    left -= s.bytes;
    own.request.segments.push_back(s);
  }
  rendezvous_.push_back(std::move(own));
  transport::SendWork fetch;
  fetch.opcode = WorkOpcode::Read;
  fetch.bytes = message.length;
  fetch.remote_address = message.address;
  fetch.rkey = {message.rkey};
  post_own(rendezvous_.back(), fetch);
}

void QueuePair::post_own(Rendezvous& own, transport::SendWork work) {
  work.work = own.work;
  work.signaled = true;
  note_posted(work);
  requester_->post(work);
}

QueuePair::Rendezvous* QueuePair::rendezvous_of(std::uint32_t work) {
  const auto found = std::ranges::find(rendezvous_, work, &Rendezvous::work);
  return found == rendezvous_.end() ? nullptr : &*found;
}

// The message is here: the program hears of it (the tag was told with the match), and the peer, who
// may use its memory again.
std::optional<PendingCqe> QueuePair::on_own_done(const transport::SendCompletion& done, Time now) {
  Rendezvous& own = *rendezvous_of(done.work);
  const bool is_good = done.status == Status::Success;
  if (!is_good && done.status != Status::Flushed) last_reason_ = done.reason;
  PendingCqe pending{.cqn = own.receive.cqn, .cqe = {}};
  pending.cqe.cookie = own.receive.cookie;
  pending.cqe.qpn = context_.qpn.value;
  pending.cqe.work = own.receive.work;
  pending.cqe.status = static_cast<std::uint8_t>(done.status);
  pending.cqe.reason = static_cast<std::uint16_t>(done.reason.id);
  pending.cqe.kind = static_cast<std::uint8_t>(CqeKind::ReceiveTagged);
  pending.cqe.flags = own.receive.flags;
  pending.cqe.time_ps = static_cast<std::uint64_t>(now.ps);
  if (own.is_told) {
    std::erase_if(rendezvous_, [&](const Rendezvous& r) { return r.work == done.work; });
    pending.cqn = 0;  // only that it failed is of interest, to the device
    return is_good ? std::nullopt : std::optional(pending);
  }
  for (const Segment& s : own.request.segments) pending.cqe.byte_count += s.bytes;
  if (!is_good) {
    std::erase_if(rendezvous_, [&](const Rendezvous& r) { return r.work == done.work; });
    return pending;
  }
  own.is_told = true;
  own.request.segments.clear();
  own.request.inline_bytes = TagHeader{.operation = TagOperation::Finished,
                                       .private_word = own.receive.private_word,
                                       .tag = own.receive.tag}
                                 .bytes();
  transport::SendWork told;
  told.opcode = WorkOpcode::Send;
  told.bytes = TagHeader::kBytes;
  post_own(own, told);
  return pending;
}

}  // namespace softhca::nic
