#include "nic/device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace softhca::nic {

using trace::Counter;
using trace::EventKind;
using trace::ReasonId;
using transport::QpState;
using transport::Status;

Device::Device(const Parts& parts)
    : tracer_(parts.tracer),
      link_(parts.link),
      interrupts_(parts.interrupts),
      tables_(parts.tables),
      faults_(parts.faults),
      neighbours_(parts.neighbours),
      congestion_(parts.congestion),
      keys_(parts.tables, parts.neighbours),
      memory_(parts.memory, keys_, parts.tracer, parts.neighbours),
      srqs_(parts.tables.srqs, parts.first_qpn, parts.qpn_start, memory_, parts.tracer),
      frame_port_(parts.frames),
      first_qpn_(parts.first_qpn),
      qpns_(parts.first_qpn, static_cast<std::uint32_t>(parts.tables.qps.size()), parts.qpn_start),
      slots_(parts.tables.qps.size()),
      frames_(kFrames * kFrameBytes + kPayloadAt) {}

Device::Slot* Device::find(wire::Qpn qpn) {
  return const_cast<Slot*>(std::as_const(*this).find(qpn));
}

const Device::Slot* Device::find(wire::Qpn qpn) const {
  const std::uint32_t index = qpn.value - first_qpn_;
  if (index >= slots_.size() || slots_[index].qp == nullptr) return nullptr;
  return &slots_[index];
}

void Device::create_cq(std::uint32_t cqn, RingPlace ring, CompletionQueue::Overrun overrun) {
  cqs_.emplace(cqn, CompletionQueue(cqn, ring, overrun));
}
void Device::move_cq(std::uint32_t cqn, RingPlace ring, std::uint32_t filled) {
  cqs_.at(cqn).move_to(ring, filled);
}
void Device::moderate_cq(std::uint32_t cqn, const Moderation& rule, Time now) {
  CompletionQueue& cq = cqs_.at(cqn);
  cq.moderate(rule);
  events_at_ = earlier(events_at_, cq.event_due());
  run_moderation(now);
}
void Device::destroy_cq(std::uint32_t cqn) { cqs_.erase(cqn); }

std::optional<wire::Qpn> Device::take_qpn() {
  const auto number = qpns_.take();
  if (!number) return std::nullopt;
  return wire::Qpn{*number};
}
void Device::give_back_qpn(wire::Qpn qpn) { qpns_.give_back(qpn.value); }

void Device::create_qp(const QpContext& context) {
  const std::uint32_t index = context.qpn.value - first_qpn_;
  ASSERT(index < slots_.size() && slots_[index].qp == nullptr);
  Slot& slot = slots_[index];
  slot = {};
  QpRecord& record = tables_.qps[index];
  slot.qp = std::make_unique<QueuePair>(context, memory_, srqs_, tracer_, record.counters,
                                        congestion_, faults_, neighbours_, &link_);
  if (faults_ != nullptr) faults_->note_queue_pair(context.qpn);
  used_slots_.push_back(index);
  record = {.qpn = context.qpn.value,
            .type = static_cast<std::uint32_t>(context.type),
            .pd = context.pd,
            .generation = record.generation + 1,
            .receive_bus = context.receive.bus.value,
            .receive_slots = context.receive.slots,
            .receive_stride = context.receive.stride};
}

void Device::send_owed(Time now) {
  if (owed_since_ != Time::never()) transmit(now);
}

void Device::destroy_qp(wire::Qpn qpn, Time now) {
  send_owed(now);
  Slot* slot = find(qpn);
  ASSERT(slot != nullptr);
  const std::uint32_t index = qpn.value - first_qpn_;
  set_published_state(qpn, static_cast<std::uint32_t>(QpState::Reset));
  tables_.qps[index] = {.generation = tables_.qps[index].generation};
  keys_.forget_queue_pair(qpn);
  if (faults_ != nullptr) faults_->forget_queue_pair(qpn);
  std::erase(active_, index);
  forget_held(index);
  std::erase(used_slots_, index);
  std::erase_if(later_, [&](const Later& l) { return l.cqe.cqe.qpn == qpn.value; });
  *slot = {};
}

void Device::modify_qp(wire::Qpn qpn, const transport::QpAttributes& attributes, QpState to,
                       const wire::Datagram& path, Time now) {
  Slot* slot = find(qpn);
  ASSERT(slot != nullptr);
  send_owed(now);
  QueuePair& qp = *slot->qp;
  const QpState from = qp.state();
  set_published_state(qpn, static_cast<std::uint32_t>(QpState::Reset));  // it is being changed
  switch (to) {
    case QpState::Reset:
      qp.to_reset();
      ++tables_.qps[qpn.value - first_qpn_].generation;  // its receives are counted anew
      slot->failure_told = false;
      slot->end_told = false;
      slot->established_told = false;
      slot->silence_told = false;
      slot->heard_at = Time::never();
      forget_held(qpn.value - first_qpn_);
      break;
    case QpState::Rtr:
      qp.to_rtr(attributes, path);
      if (faults_ != nullptr) faults_->note_peer(qpn, attributes.dest_qpn);
      break;
    case QpState::Rts:
      if (from == QpState::Rtr)
        qp.to_rts(attributes);
      else
        qp.update(attributes), qp.set_state(to);
      if (from == QpState::Sqe) slot->failure_told = false;
      break;
    case QpState::Error:
      qp.enter_error(Status::Flushed, {.id = ReasonId::Flushed}, now);
      break;
    default:
      qp.update(attributes);
      if (to == QpState::Sqd) qp.adjust(attributes, path);
      qp.set_state(to);
  }
  QpRecord& record = tables_.qps[qpn.value - first_qpn_];
  record.access = attributes.access_flags;
  record.dest_qpn = attributes.dest_qpn.value;
  record.path_mtu = attributes.path_mtu_bytes;
  std::memcpy(record.destination, attributes.address.destination.bytes.data(),
              sizeof record.destination);
  std::memcpy(record.source, qp.path().source.bytes.data(), sizeof record.source);
  if (from != to)
    tracer_.emit(EventKind::QpState, now, qpn.value, static_cast<std::uint64_t>(from),
                 static_cast<std::uint64_t>(to));
  after_work(*slot, now);
}

QpState Device::qp_state(wire::Qpn qpn) const {
  const Slot* slot = find(qpn);
  ASSERT(slot != nullptr);
  return slot->qp->state();
}

bool Device::is_draining(wire::Qpn qpn) const {
  const Slot* slot = find(qpn);
  ASSERT(slot != nullptr);
  return slot->qp->is_draining();
}

void Device::stop(const trace::Reason& why, Time now) {
  for (const std::uint32_t index : used_slots_) {
    Slot& slot = slots_[index];
    if (slot.qp->state() == QpState::Reset) continue;
    slot.failure_told = true;
    enter_error(slot, why, now);
    after_work(slot, now);
  }
}

void Device::mmio_write(std::uint64_t offset, std::uint64_t value, Time now) {
  const std::uint64_t number = offset / 8;
  const auto doorbell = static_cast<Doorbell>(number & 3);
  const auto object = static_cast<std::uint32_t>(number >> 2);
  if (doorbell == Doorbell::ArmCq) {
    const auto cq = cqs_.find(object);
    if (cq == cqs_.end()) return;
    tracer_.count(Counter::Doorbells);
    cq->second.arm(value == 1 ? CompletionQueue::Armed::Any : CompletionQueue::Armed::Solicited);
    send_owed(now);
    return;
  }
  if (doorbell == Doorbell::SharedReceive) {
    SharedReceiveQueue* const srq = srqs_.find(object);
    if (srq == nullptr) return;
    tracer_.count(Counter::Doorbells);
    srq->on_doorbell(static_cast<std::uint32_t>(value));
    return;
  }
  Slot* slot = find({object});
  if (slot == nullptr) return;
  if (doorbell == Doorbell::Send)
    slot->qp->on_send_doorbell(static_cast<std::uint32_t>(value), now);
  else
    slot->qp->on_receive_doorbell(static_cast<std::uint32_t>(value), now);
  after_work(*slot, now);
  if (doorbell == Doorbell::Send) transmit(now, Turn::Requests);
  // Within a device an end that has sent a message finds it received at the other one.
  if (slot->qp->take_told_itself()) receive(now);
}

// Whatever a queue pair came to: completions, failures, timers, its turn to send.
void Device::after_work(Slot& slot, Time now) {
  QueuePair& qp = *slot.qp;
  const auto drain = [&] {
    while (auto pending = qp.poll_completion(now)) {
      const auto status = static_cast<Status>(pending->cqe.status);
      const bool failed =
          status != Status::Success && status != Status::Flushed && qp.state() != QpState::Error;
      const bool only_sends =
          qp.is_unreliable() && pending->cqe.kind < static_cast<std::uint8_t>(CqeKind::Receive);
      // Told first: that the completion cannot be written either would be a consequence.
      if (failed) on_failure(slot, qp.last_reason(), now);
      if (qp.ready_at() > now)
        defer({qp.ready_at(), *pending});
      else
        write_cqe(*pending, now);
      if (!failed || qp.state() == QpState::Error) continue;
      if (only_sends)  // IBTA 10.3.1.6
        qp.enter_send_error(now);
      else
        enter_error(slot, {.id = ReasonId::Flushed}, now);
    }
  };
  drain();
  if (const auto failure = qp.poll_failure()) {
    on_failure(slot, failure->reason, now);
    if (qp.state() != QpState::Error) enter_error(slot, {.id = ReasonId::Flushed}, now);
    drain();
    using transport::ResponderEvent;
    if (failure->event != ResponderEvent::None)
      raise_event(failure->event == ResponderEvent::AccessError    ? EqeKind::QpAccessError
                  : failure->event == ResponderEvent::RequestError ? EqeKind::QpRequestError
                                                                   : EqeKind::QpFatal,
                  qp.context().qpn.value, failure->reason.id, now);
  }
  if (qp.state() == QpState::Error && qp.shares_receives()) tell_end(slot, now);
  if (srqs_.has_news()) tell_of_shared_queues(now);
  if (qp.take_drained())
    raise_event(EqeKind::SqDrained, qp.context().qpn.value, ReasonId::None, now);
  count_transport(slot, now);
  timers_at_ = earlier(timers_at_, qp.next_deadline());
  if (!qp.has_nothing_to_send()) activate(slot);
  publish(slot);
  if (qp.holds_receives()) [[unlikely]]
    hold(qp.context().qpn.value - first_qpn_, now);
}

// Mostly nothing lies there.
void Device::hold(std::uint32_t index, Time now) {
  if (std::ranges::find(held_, index, &Held::index) != held_.end()) return;
  held_.push_back({index, link_.waiting()});
  if (!is_receiving_) flush_held(now);
}

void Device::forget_held(std::uint32_t index) {
  std::erase_if(held_, [=](const Held& held) { return held.index == index; });
}

void Device::publish(Slot& slot) {
  const QueuePair& qp = *slot.qp;
  QpRecord& record = tables_.qps[qp.context().qpn.value - first_qpn_];
  // What has not changed is not written: a peer that reads it would have to fetch it again.
  const auto store = [](std::uint32_t& cell, std::uint32_t value) {
    const std::atomic_ref<std::uint32_t> shared(cell);
    if (shared.load(std::memory_order_relaxed) != value)
      shared.store(value, std::memory_order_release);
  };
  store(record.send_done, qp.send_done());
  store(record.receive_done, qp.receive_done());
  store(record.receive_posted, qp.receive_posted());
  Expected expected = qp.expected();
  expected.established |= slot.established_told;
  store(record.expects, expected.word());
  store(record.path, qp.path_word());
  if (qp.places_messages() && !slot.way.is_memory) {
    slot.way = {.is_memory = true, .why_not = {}};
    store(record.message_path, kPathRing);
  }
  store(record.state, static_cast<std::uint32_t>(qp.state()));
}

// Peers of this host that were let in by the state before have left when this returns.
void Device::set_published_state(wire::Qpn qpn, std::uint32_t state) {
  std::atomic_ref cell(tables_.qps[qpn.value - first_qpn_].state);
  const auto before = static_cast<QpState>(cell.load(std::memory_order_relaxed));
  cell.store(state);
  if (neighbours_ != nullptr && before >= QpState::Rtr && before <= QpState::Sqd)
    neighbours_->wait_until_left();
}

// No peer of this host is in there any more when the program hears of it.
void Device::enter_error(Slot& slot, const trace::Reason& reason, Time now) {
  set_published_state(slot.qp->context().qpn, static_cast<std::uint32_t>(QpState::Error));
  slot.qp->enter_error(Status::Flushed, reason, now);
}

void Device::on_failure(Slot& slot, const trace::Reason& reason, Time now) {
  tracer_.emit(reason, now);
  if (slot.failure_told || reason.id == ReasonId::Flushed) return;
  slot.failure_told = true;
  if (on_failure_) on_failure_(slot.qp->context().qpn, reason);
}

void Device::write_cqe(PendingCqe& pending, Time now) {
  const auto found = cqs_.find(pending.cqn);
  if (found == cqs_.end() || found->second.failed()) return;
  CompletionQueue& cq = found->second;
  const CompletionQueue::Written written = cq.write(pending.cqe, memory_, now);
  if (written.lost) return tracer_.count(Counter::CompletionsLost);
  if (written.full) return fail_cq(cq, {.id = ReasonId::CqOverrun, .object = cq.cqn()}, now);
  if (!written.outcome) return fail_cq(cq, written.outcome.reason, now);
  tracer_.count(Counter::CqesWritten);
  tracer_.emit(EventKind::Cqe, now, pending.cqn, pending.cqe.qpn, pending.cqe.work,
               pending.cqe.status, pending.cqe.byte_count);
  if (written.wants_event) raise_event(EqeKind::Completion, cq.cqn(), ReasonId::None, now);
  events_at_ = earlier(events_at_, cq.event_due());
}

// C36: a completion queue that overruns, or cannot be written to, fails, and with it every queue
// pair that uses it.
void Device::fail_cq(CompletionQueue& cq, const trace::Reason& why, Time now) {
  cq.set_failed();
  raise_event(EqeKind::CqError, cq.cqn(), why.id, now);
  srqs_.fail_those_of_cq(cq.cqn(), why);
  for (const std::uint32_t index : std::vector<std::uint32_t>(used_slots_)) {
    const QpContext& context = slots_[index].qp->context();
    if (context.send_cqn == cq.cqn() || context.receive_cqn == cq.cqn())
      fail_qp(slots_[index], why, now);
  }
  tell_of_shared_queues(now);
}

void Device::fail_qp(Slot& slot, const trace::Reason& why, Time now) {
  if (slot.qp->state() == QpState::Error || slot.qp->state() == QpState::Reset) return;
  on_failure(slot, why, now);
  enter_error(slot, why, now);
  raise_event(EqeKind::QpFatal, slot.qp->context().qpn.value, why.id, now);
  after_work(slot, now);  // what was flushed may belong to another queue, which has not failed
}

void Device::raise_event(EqeKind kind, std::uint32_t object, ReasonId reason, Time now) {
  if (!events_.is_set()) return;
  const Eqe eqe{.kind = static_cast<std::uint32_t>(kind),
                .object = object,
                .reason = static_cast<std::uint32_t>(reason),
                .lap = 0};
  if (!events_.write(eqe, memory_, now)) return;
  tracer_.count(Counter::EqesWritten);
  tracer_.emit(EventKind::Eqe, now, object, static_cast<std::uint64_t>(kind));
  interrupts_.interrupt(0, now);
}

void Device::defer(const Later& what) {
  later_.insert(std::ranges::upper_bound(later_, what.at, {}, &Later::at), what);
}

void Device::run_deferred(Time now) {
  while (!later_.empty() && later_.front().at <= now) {
    Later due = later_.front();
    later_.pop_front();
    if (due.is_end)
      raise_event(EqeKind::QpLastWqe, due.cqe.cqe.qpn, ReasonId::None, now);
    else
      write_cqe(due.cqe, now);
  }
}

// In the order of the queues' numbers, whatever the order of the table.
void Device::run_moderation(Time now) {
  if (now < events_at_) return;
  std::vector<std::uint32_t> due;
  events_at_ = Time::never();
  for (auto& [cqn, cq] : cqs_) {
    if (cq.event_due() <= now)
      due.push_back(cqn);
    else
      events_at_ = earlier(events_at_, cq.event_due());
  }
  std::ranges::sort(due);
  for (const std::uint32_t cqn : due) {
    cqs_.at(cqn).release_event();
    raise_event(EqeKind::Completion, cqn, ReasonId::None, now);
  }
}

bool Device::progress(Time now, Caller caller) {
  run_deferred(now);
  run_moderation(now);
  bool worked = false;
  for (int round = 0; round < kReceiveRounds; ++round) {
    const std::size_t received = std::max(receive(now), receive_frames(now));
    if (received == 0) break;
    worked = true;
    if (caller == Caller::ComesBack && put_off(now)) return true;
    transmit(now);  // answers leave before the next batch is looked at
    if (received < kReceiveBatch || caller == Caller::ComesBack) break;
  }
  worked |= run_timers(now);
  worked |= transmit(now);
  return worked;
}

bool Device::put_off(Time now) {
  if (owed_since_ == Time::never()) owed_since_ = now;
  return now < owed_since_ + kPutOff;
}

Time Device::next_deadline() const {
  if (!held_.empty()) return Time{0};
  Time at = earlier(timers_at_, events_at_);
  if (!later_.empty()) at = earlier(at, later_.front().at);
  if (raw_waiting_ != 0)
    at = Time{0};
  else if (refused_at_ != Time::never())
    // What the link has no room for leaves with the next call, and at the latest then.
    at = earlier(at, refused_at_ + kOwedFor);
  else if (!outbox_.empty())
    at = earlier(at, outbox_.front().ready_at);
  else if (!active_.empty())
    at = owed_since_ == Time::never() ? Time{0} : earlier(at, owed_since_ + kOwedFor);
  return earlier(at, link_.next_arrival());
}

}  // namespace softhca::nic
