// The requester's half that takes answers in: ACK, NAK, RNR NAK, READ and atomic responses.
#include "base/assert.h"
#include "transport/fault.h"
#include "transport/requester.h"

namespace softhca::transport {

using trace::QpCounter;
using trace::ReasonId;

std::optional<std::uint64_t> Requester::number_of(wire::Psn psn) const {
  const std::int32_t delta = wire::ahead(psn, psn_of(oldest_));
  if (delta < 0 && static_cast<std::uint64_t>(-delta) > oldest_) return std::nullopt;
  return oldest_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(delta));
}

// Completes local work whose turn has come, and fails the front if it was refused locally.
void Requester::settle() {
  while (!failed_ && !work_.empty() && work_.front().executed) complete_front();
  if (!failed_ && !work_.empty() && work_.front().work.status != Status::Success)
    fail(work_.front().work.status, work_.front().work.reason);
}

void Requester::complete_front() {
  const SendWork& work = work_.front().work;
  done_.push_back({work.work, Status::Success, work.signaled, {}});
  work_.pop_front();
}

// All packets before `number` have arrived. Completes what that completes. False if a READ or the
// like among them has not been answered: its response was lost (implied NAK, C9-110).
bool Requester::acknowledge_before(std::uint64_t number, Time now) {
  const std::uint64_t before = oldest_;
  bool reached = true;
  while (!failed_ && oldest_ < number && !work_.empty()) {
    Operation& front = work_.front();
    if (front.work.status != Status::Success) break;
    if (front.is_local()) {
      if (!front.executed) break;
      complete_front();
      continue;
    }
    if (front.awaits_response()) {
      reached = false;
      break;
    }
    oldest_ = front.behind() < number ? front.behind() : number;
    if (oldest_ == front.behind()) complete_front();
  }
  if (next_ < oldest_) next_ = oldest_;  // it was going to send again what has arrived after all
  if (oldest_ != before) {
    if (highest_sent_ - before >= window_.packets() / 2) window_.on_progress(oldest_ - before);
    retries_left_ = retry_count_;
    rnr_retries_left_ = rnr_retry_;
    went_back_ = false;
    restart_timer(now);
  }
  settle();
  return reached;
}

void Requester::on_acknowledge(const wire::Headers& headers, Time now) {
  check_invariants();
  if (failed_) return;
  const std::optional<std::uint64_t> number = number_of(headers.bth.psn);
  // Ghosts: acknowledgements of what was never sent, or of what has been acknowledged.
  if (!number || *number >= highest_sent_ || *number < oldest_) return;
  if (headers.aeth_kind != wire::AethKind::Ack) {
    on_nak(headers, *number, now);
  } else {
    counters_.add(QpCounter::AcksReceived);
    if (!acknowledge_before(*number + 1, now) && !went_back_) {
      if (spend_retry()) go_back_for_loss(oldest_, now);
      went_back_ = true;
    }
  }
  check_invariants();
}

void Requester::on_nak(const wire::Headers& headers, std::uint64_t number, Time now) {
  const bool is_rnr = headers.aeth_kind == wire::AethKind::RnrNak;
  counters_.add(counters_of(headers.aeth_kind, headers.aeth_value).received);
  // A NAK acknowledges everything before it (C9-109), unless a response with bytes is missing
  // there.
  if (!acknowledge_before(number, now)) {
    if (!went_back_ && spend_retry()) go_back_for_loss(oldest_, now);
    went_back_ = true;
    return;
  }
  if (failed_ || work_.empty()) return;
  if (is_rnr) {
    if (rnr_retry_ != 7) {
      if (rnr_retries_left_ == 0)
        return fail(Status::RnrRetriesExceeded,
                    {.id = ReasonId::RnrRetriesSpent, .object = dest_qpn_.value});
      --rnr_retries_left_;
    }
    go_back(number, now);
    if (rnr_until_ == Time{0}) {
      counters_.add(QpCounter::RnrWaits);
      rnr_since_ = now;
    }
    rnr_until_ = now + rnr_delay(headers.aeth_value);
    ack_deadline_ = Time::never();
    return;
  }
  switch (static_cast<wire::NakCode>(headers.aeth_value)) {
    case wire::NakCode::SequenceError:
      // A responder says so once for each gap (C9-112): a second NAK without progress in between is
      // a duplicate or late, and answering it would spend retries on nothing. If what was sent
      // again is lost too, the timer finds out.
      if (!went_back_ && spend_retry()) go_back_for_loss(number, now);
      went_back_ = true;
      return;
    case wire::NakCode::InvalidRequest:
    case wire::NakCode::InvalidRdRequest:
      return fail(Status::RemoteInvalidRequest,
                  {.id = ReasonId::RemoteInvalidRequest, .object = dest_qpn_.value});
    case wire::NakCode::RemoteAccess: {
      const SendWork& work = work_.front().work;
      return fail(Status::RemoteAccess, {.id = ReasonId::RemoteAccess,
                                         .object = work.rkey.value,
                                         .address = work.remote_address,
                                         .length = work.bytes});
    }
    case wire::NakCode::RemoteOperational:
      return fail(Status::RemoteOperation,
                  {.id = ReasonId::RemoteOperational, .object = dest_qpn_.value});
  }
}

// The front, if the response in hand is the next that it waits for. Acknowledges what is before it;
// goes back if something before it is missing.
Requester::Operation* Requester::front_awaiting(const wire::Headers& headers, Time now) {
  if (failed_) return nullptr;
  const std::optional<std::uint64_t> number = number_of(headers.bth.psn);
  if (!number || *number >= highest_sent_ || *number < oldest_) return nullptr;
  const bool reached = acknowledge_before(*number, now);
  if (failed_ || work_.empty()) return nullptr;
  if (!reached || *number != oldest_) {  // the packet before it is missing
    if (!went_back_ && spend_retry()) go_back_for_loss(oldest_, now);
    went_back_ = true;
    return nullptr;
  }
  Operation& front = work_.front();
  return *number < front.first ? nullptr : &front;
}

bool Requester::place_response(Operation& front, std::uint64_t offset, std::uint32_t bytes) {
  const trace::Reason reason = memory_.place({.place = PayloadRef::Place::SendWork,
                                              .work = front.work.work,
                                              .offset = offset,
                                              .key = {},
                                              .address = 0,
                                              .bytes = bytes});
  if (reason) fail(Status::LocalProtection, reason);
  return !reason;
}

// The packet at oldest_ has its answer.
void Requester::take_response(Operation& front, Time now) {
  ++oldest_;
  if (next_ < oldest_) next_ = oldest_;
  retries_left_ = retry_count_;
  rnr_retries_left_ = rnr_retry_;
  went_back_ = false;
  if (oldest_ == front.behind()) complete_front();
  restart_timer(now);
  settle();
}

void Requester::on_read_response(const wire::OpcodeInfo& info, const wire::Headers& headers,
                                 std::uint32_t payload_bytes, Time now) {
  check_invariants();
  Operation* const front = front_awaiting(headers, now);
  if (front == nullptr) return;
  const bool is_write = front->work.opcode == WorkOpcode::AtomicWrite;
  if (!front->is_read() && !is_write) return;
  const std::uint64_t number = oldest_;
  const std::uint64_t offset = (number - front->first) * mtu_;
  const std::uint64_t left = is_write ? 0 : front->work.bytes - offset;
  const auto expected = static_cast<std::uint32_t>(left < mtu_ ? left : mtu_);
  const bool ends_piece = is_write || number + 1 == piece_end(*front, number);
  if (payload_bytes != expected || info.ends() != ends_piece)
    return fail(Status::BadResponse,
                {.id = ReasonId::BadResponse, .object = dest_qpn_.value, .length = payload_bytes});
  if (payload_bytes != 0 && !place_response(*front, offset, payload_bytes)) return;
  take_response(*front, now);
  check_invariants();
}

void Requester::on_atomic_response(const wire::Headers& headers, Time now) {
  check_invariants();
  if (headers.aeth_kind != wire::AethKind::Ack) return;  // a refusal has an opcode of its own
  Operation* const front = front_awaiting(headers, now);
  if (front == nullptr || !is_atomic(front->work.opcode)) return;
  if (!place_response(*front, 0, kAtomicBytes)) return;
  take_response(*front, now);
  check_invariants();
}

void Requester::on_payload_fault(std::uint32_t work, Status status, const trace::Reason& reason) {
  for (Operation& op : work_) {
    if (op.work.work != work) continue;
    op.work.status = status;
    op.work.reason = reason;
    break;
  }
  settle();
}

void Requester::fail(Status status, const trace::Reason& reason) {
  if (failed_) return;
  failed_ = true;
  bool first = true;
  for (const Operation& op : work_) {
    done_.push_back({op.work.work, first ? status : Status::Flushed, true,
                     first ? reason : trace::Reason{.id = ReasonId::Flushed}});
    first = false;
  }
  work_.clear();
  locals_ = 0;
  window_full_since_ = Time::never();
  oldest_ = next_ = end_;
  ack_deadline_ = Time::never();
}

}  // namespace softhca::transport
