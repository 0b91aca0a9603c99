// QueuePair: requests to a peer on this host, executed in its memory without packets.
//
// They take their turn: only when the peer has executed, and acknowledged, all that went before as
// packets. Whatever its tables do not plainly allow goes as packets too, so that the peer's
// responder refuses it as always. Such a request completes in the call that posted it.
//
// The bytes of a SEND go into the receive that the peer has posted next, and a notice tells it so;
// a WRITE with an immediate likewise takes that receive. Which one it is only the peer and its only
// sender know: each counts for itself.
#include <algorithm>

#include "base/assert.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using pcie::Direction;
using transport::QpState;
using transport::SendWork;
using transport::Status;
using transport::WorkOpcode;

namespace {

// As much takes longer as packets than the acknowledgement of what is before it.
constexpr std::uint64_t kWorthWaiting = 32768;
// Of a WRITE that is executed with others, and how many of them: each is at most two pieces there.
constexpr std::uint64_t kMostInBatch = kPage4K;
constexpr std::size_t kBatch = pcie::SpanList::kCapacity / 2;
// After a peer that let nobody in; longer each time.
constexpr Duration kFirstPause = milliseconds(1);
constexpr Duration kLongestPause = milliseconds(64);
constexpr Duration kFindAgain = seconds(1);

bool is_one_sided(WorkOpcode opcode) {
  return opcode == WorkOpcode::Write || opcode == WorkOpcode::Read || transport::is_atomic(opcode);
}

Direction local_direction(WorkOpcode opcode) {
  return transport::brings_bytes(opcode) ? Direction::Write : Direction::Read;
}

bool is_message(WorkOpcode opcode) {
  return opcode == WorkOpcode::Send || opcode == WorkOpcode::SendImm ||
         opcode == WorkOpcode::WriteImm;
}

bool has_immediate(WorkOpcode opcode) {
  return opcode == WorkOpcode::SendImm || opcode == WorkOpcode::WriteImm;
}

// As packets it takes one of the receives that the peer has posted.
bool takes_receive(WorkOpcode opcode) {
  return is_message(opcode) || opcode == WorkOpcode::SendInvalidate;
}

}  // namespace

Expected QueuePair::expected() const {
  if (!responder_) return {};
  return {.psn = responder_->expected_psn().value,
          .reads = responder_->max_reads(),
          .established = state_ != QpState::Rtr};
}

// The peer on this host, if it is one and there is no pause.
Neighbour* QueuePair::find_neighbour(Time now) {
  if (neighbours_ == nullptr || now < direct_.again_at) return nullptr;
  if (direct_.neighbour) return direct_.neighbour.get();
  auto [neighbour, why_not] = neighbours_->find(connection());
  direct_.path = neighbour ? kPathDirect : static_cast<std::uint32_t>(why_not);
  if (!neighbour) direct_.again_at = now + kFindAgain;
  direct_.neighbour = std::move(neighbour);
  return direct_.neighbour.get();
}

QueuePair::Way QueuePair::way_of(const SendWork& work, Time now) {
  if (context_.type != transport::QpType::Rc || state_ != QpState::Rts || !requester_ ||
      requester_->failed() || work.status != Status::Success)
    return Way::Packets;
  if (find_neighbour(now) == nullptr) return Way::Packets;
  const bool may_be =
      is_message(work.opcode) ? may_place(now) : is_one_sided(work.opcode) && work.bytes != 0;
  if (!may_be) {
    direct_.behind_packets = work.work + 1;
    return Way::Packets;
  }
  if (requester_->is_idle()) return Way::Direct;
  // Small ones do not wait behind what is always packets, but keep its pace; behind others that
  // only happened to go as packets they do, or a stream would never get back.
  const bool keeps_pace = static_cast<std::int32_t>(direct_.behind_packets - send_done_) > 0;
  return keeps_pace && work.bytes < kWorthWaiting ? Way::Packets : Way::Later;
}

// Begins a request, or holds it. What was collected before it goes first.
void QueuePair::start(const SendWork& work, Time now) {
  if (neighbours_ == nullptr) return post(work);
  if (way_of(work, now) == Way::Direct) {
    if (join_batch(work, now)) return;
    run_batch(now);
    if (requester_->is_idle()) {
      const bool is_done =
          is_message(work.opcode) ? place_message(work, now) : execute_direct(work, now);
      return is_done ? complete_direct(work, now) : post(work);
    }
  } else {
    run_batch(now);
  }
  if (way_of(work, now) == Way::Later)
    held_ = work;
  else
    post(work);
}

bool QueuePair::join_batch(const SendWork& work, Time now) {
  const Fetched& request = fetched(work.work);
  if (work.opcode != WorkOpcode::Write || work.bytes > kMostInBatch || !has_heard()) return false;
  const std::size_t spans = batch_.local.all().size() + 2 * request.segments.size();
  if (batch_.works.size() == kBatch || spans + 2 > pcie::SpanList::kCapacity) run_batch(now);
  if (!requester_->is_idle() ||
      locate(request, 0, Direction::Read, batch_.local, now) != work.bytes) {
    run_batch(now);  // what was found of this one lies behind the others' bytes
    return false;
  }
  batch_.works.push_back(work);
  batch_.requests.push_back({.rkey = work.rkey,
                             .address = work.remote_address,
                             .bytes = work.bytes,
                             .is_inline = !request.inline_bytes.empty()});
  return true;
}

void QueuePair::run_batch(Time now) {
  if (batch_.works.empty()) return batch_.local.clear();
  const std::size_t executed = ask_neighbour(WorkOpcode::Write, batch_.requests, batch_.local, now);
  for (std::size_t i = 0; i < executed; ++i) complete_direct(batch_.works[i], now);
  if (executed < batch_.works.size()) go_by_packets(now);
  for (std::size_t i = executed; i < batch_.works.size(); ++i) post(batch_.works[i]);
  batch_.works.clear();
  batch_.requests.clear();
  batch_.local.clear();
}

// Piece by piece, as long as it is. What was done of one that fails is done again as packets.
bool QueuePair::execute_direct(const SendWork& work, Time now) {
  if (!has_heard()) return false;
  const Fetched& request = fetched(work.work);
  for (std::uint64_t done = 0; done < work.bytes;) {
    pcie::SpanList local;
    const std::uint64_t bytes = locate(request, done, local_direction(work.opcode), local, now);
    const DirectRequest piece{.rkey = work.rkey,
                              .address = work.remote_address + done,
                              .bytes = bytes,
                              .swap_or_add = work.swap_or_add,
                              .compare = work.compare,
                              .is_inline = !request.inline_bytes.empty()};
    if (bytes == 0 || ask_neighbour(work.opcode, {&piece, 1}, local, now) != 1) {
      go_by_packets(now);
      return false;
    }
    done += bytes;
  }
  return true;
}

bool QueuePair::may_place(Time now) const {
  return link_ != nullptr && faults_ == nullptr && !direct_.never_sends &&
         link_->way_to(path_, peer_, now).is_memory;
}

// Whether the peer has heard of all messages that were placed: what comes behind them must not be
// seen before they are.
bool QueuePair::has_heard() {
  if (direct_.is_told)
    direct_.is_told =
        direct_.neighbour->next_receive(connection(), requester_->next_psn()) != direct_.receive;
  return !direct_.is_told;
}

bool QueuePair::place_message(const SendWork& work, Time now) {
  if (!link_->has_memory_room(path_, peer_, now)) return false;
  switch (deliver_message(work, now)) {
    case Delivered::Yes:
      return true;
    case Delivered::NoReceive:
      return false;
    case Delivered::Never:
      direct_.never_sends = true;
      return false;
    case Delivered::No:
      go_by_packets(now);
      return false;
  }
  return false;
}

// What was placed of a message that fails is placed again as packets, in the same receive.
Delivered QueuePair::deliver_message(const SendWork& work, Time now) {
  Neighbour& neighbour = *direct_.neighbour;
  const wire::Psn next = requester_->next_psn();
  if (!direct_.receive) direct_.receive = neighbour.next_receive(connection(), next);
  if (!direct_.receive) return Delivered::No;
  const Fetched& request = fetched(work.work);
  const auto tell_of_it = [&] { return tell(work, now); };
  std::uint64_t done = 0;
  Delivered delivered = Delivered::No;
  do {
    pcie::SpanList local;
    const std::uint64_t bytes =
        work.bytes == 0 ? 0 : locate(request, done, Direction::Read, local, now);
    if (bytes == 0 && work.bytes != 0) return Delivered::No;
    const Delivery part{.receive = *direct_.receive,
                        .message_bytes = work.bytes,
                        .offset = done,
                        .is_inline = !request.inline_bytes.empty(),
                        .is_write = work.opcode == WorkOpcode::WriteImm,
                        .rkey = work.rkey,
                        .address = work.remote_address};
    done += bytes;
    std::function<bool()> behind_it;  // of a reference, which takes no memory
    if (done == work.bytes) behind_it = std::ref(tell_of_it);
    delivered =
        neighbour.deliver(connection(), next, part, local.all(), direct_.receives, behind_it, now);
  } while (delivered == Delivered::Yes && done < work.bytes);
  if (delivered != Delivered::Yes) return delivered;
  ++direct_.receive->number;
  direct_.is_told = true;
  told_itself_ |= neighbour.is_self();
  return Delivered::Yes;
}

bool QueuePair::tell(const SendWork& work, Time now) {
  const bool with_immediate = has_immediate(work.opcode);
  PlacedNotice notice{.bytes = static_cast<std::uint32_t>(work.bytes),
                      .receive = direct_.receive->number,
                      .generation = direct_.receive->generation,
                      .immediate = with_immediate ? work.immediate : 0};
  notice.set_qpn(peer_);
  if (with_immediate) notice.flags |= PlacedNotice::kWithImmediate;
  if (work.solicited) notice.flags |= PlacedNotice::kSolicited;
  if (work.opcode == WorkOpcode::WriteImm) notice.flags |= PlacedNotice::kWrite;
  link::Frame frame{.datagram = path_, .bytes = bytes_of(notice)};
  frame.has_icrc = false;
  return link_->send({&frame, 1}, now) == 1;
}

// Nobody tells the truth who says so in the middle of another message, or of more bytes than the
// receive has room for.
bool QueuePair::on_placed(const PlacedNotice& notice, Time now) {
  if (!responder_ || shares_receives() || receives_.next() != notice.receive) return false;
  if (responder_->is_in_message()) return false;
  if (state_ == QpState::Error && !holds_receives_) return false;
  now_ = now;
  const auto slot = receives_.take(receive_, context_.qpn, now);
  if (!slot) return false;
  ready_at_ = later(ready_at_, receive_.ready_at);
  const bool with_immediate = notice.has(PlacedNotice::kWithImmediate);
  transport::ReceiveCompletion done{.work = slot->work,
                                    .status = Status::Success,
                                    .is_write = notice.has(PlacedNotice::kWrite),
                                    .with_immediate = with_immediate,
                                    .solicited = notice.has(PlacedNotice::kSolicited),
                                    .immediate = with_immediate ? notice.immediate : 0,
                                    .invalidated = false,
                                    .invalidated_key = {},
                                    .bytes = notice.bytes,
                                    .reason = {}};
  if (!done.is_write && notice.bytes > slot->capacity_bytes) {
    done.status = Status::LocalLength;
    done.bytes = 0;
    done.reason = {.id = trace::ReasonId::ReceiveTooSmall,
                   .length = notice.bytes,
                   .high = slot->capacity_bytes};
  }
  responder_->on_placed(done);
  return true;
}

// As packets a message takes the receive that the peer has next; which one that then is, is asked
// anew. By the time that it may be, the peer has heard of all messages before.
void QueuePair::note_posted(const SendWork& work) {
  if (!takes_receive(work.opcode)) return;
  direct_.receive.reset();
  direct_.is_told = false;
}

Connection QueuePair::connection() const {
  return {.own = context_.qpn,
          .peer = peer_,
          .own_address = path_.source,
          .peer_address = path_.destination};
}

// Where the request's bytes from `offset` on are, as many as there is room for. 0: it is not known.
std::uint64_t QueuePair::locate(const Fetched& request, std::uint64_t offset, Direction direction,
                                pcie::SpanList& spans, Time now) {
  if (!request.inline_bytes.empty()) {
    // Memory of the device itself. Live, a frame's address is that of the process.
    const auto at = reinterpret_cast<std::uintptr_t>(request.inline_bytes.data());
    const std::uint64_t bytes = request.inline_bytes.size() - offset;
    return spans.append({{at + offset}, bytes}) ? bytes : 0;
  }
  std::uint64_t found = 0;
  for (const Segment& s : request.segments) {
    if (offset >= s.bytes) {
      offset -= s.bytes;
      continue;
    }
    const KeyAccess access{
        .key = {s.lkey},
        .pd = context_.pd,
        .right = direction == Direction::Read ? KeyRight::LocalRead : KeyRight::LocalWrite,
        .address = s.address + offset,
        .bytes = s.bytes - offset};
    if (memory_.is_off_bus(access)) return 0;
    const pcie::Outcome outcome = memory_.resolve(access, direction, spans, now);
    note(outcome);
    if (!outcome) return 0;
    found += outcome.done_bytes;
    if (outcome.done_bytes < access.bytes) break;
    offset = 0;
  }
  return found;
}

std::size_t QueuePair::ask_neighbour(WorkOpcode kind, std::span<const DirectRequest> requests,
                                     const pcie::SpanList& local, Time now) {
  return direct_.neighbour->execute(connection(), requester_->next_psn(), kind, requests,
                                    local.all(), now);
}

void QueuePair::complete_direct(const SendWork& work, Time now) {
  direct_.pause = {};
  count(trace::QpCounter::DirectRequests, trace::Counter::DirectRequests);
  counters_.add(trace::QpCounter::DirectBytes, work.bytes);
  tracer_.count(trace::Counter::DirectBytes, work.bytes);
  tracer_.emit(trace::EventKind::Direct, now, context_.qpn.value,
               static_cast<std::uint64_t>(work.opcode), work.work, work.remote_address, work.bytes,
               work.rkey.value);
  requester_->complete(work);
}

// The peer says itself what is wrong, or it passes.
void QueuePair::go_by_packets(Time now) {
  direct_.pause =
      direct_.pause == Duration{} ? kFirstPause : std::min(direct_.pause * 2, kLongestPause);
  direct_.again_at = now + direct_.pause;
}

}  // namespace softhca::nic
