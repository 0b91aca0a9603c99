#include "transport/requester.h"

#include <algorithm>

#include "base/assert.h"

namespace softhca::transport {

Requester::Requester(const Settings& settings, MemoryPort& memory, trace::QpCounters& counters)
    : dest_qpn_(settings.dest_qpn),
      initial_psn_(settings.initial_psn),
      mtu_(settings.mtu),
      timeout_(settings.timeout),
      retry_count_(settings.retry_count),
      rnr_retry_(settings.rnr_retry),
      max_reads_(settings.max_reads),
      service_(settings.service),
      memory_(memory),
      counters_(counters),
      window_(settings.mtu),
      retries_left_(settings.retry_count),
      rnr_retries_left_(settings.rnr_retry) {
  ASSERT(mtu_ >= 256 && mtu_ <= wire::kMaxMtu);
}

void Requester::check_invariants() const {
  ASSERT(oldest_ <= next_);
  ASSERT(next_ <= end_);
  ASSERT(work_.empty() || work_.back().behind() == end_);
}

void Requester::post(const SendWork& work) {
  check_invariants();
  if (failed_) {
    done_.push_back({work.work, Status::Flushed, true, {.id = trace::ReasonId::Flushed}});
    return;
  }
  const std::uint64_t packets = packets_of(work, mtu_);
  if (packets == 0) ++locals_;
  work_.push_back({work, end_, packets});
  end_ += packets;
  settle();
}

void Requester::complete(const SendWork& work) {
  ASSERT(is_idle() && !failed_);
  done_.push_back({work.work, Status::Success, work.signaled, {}});
}

const Requester::Operation* Requester::operation_at(std::uint64_t number) const {
  const auto behind = std::ranges::upper_bound(work_, number, {}, &Operation::first);
  return behind == work_.begin() ? nullptr : &*std::prev(behind);
}

std::uint64_t Requester::piece_end(const Operation& op, std::uint64_t at) const {
  const std::uint64_t piece = (at - op.first) / kReadPiecePackets + 1;
  return std::min(op.behind(), op.first + piece * kReadPiecePackets);
}

std::uint32_t Requester::reads_outstanding() const {
  std::uint32_t pieces = 0;
  for (const Operation& op : work_) {
    if (op.first >= next_) break;
    if (!op.awaits_response()) continue;
    const std::uint64_t from = std::max(op.first, oldest_);
    const std::uint64_t to = std::min(op.behind(), next_);
    if (to > from)
      pieces +=
          static_cast<std::uint32_t>((to - op.first + kReadPiecePackets - 1) / kReadPiecePackets -
                                     (from - op.first) / kReadPiecePackets);
  }
  return pieces;
}

bool Requester::is_read_allowed() const {
  // C9-148 ff.: no more READs and atomics outstanding than the responder has resources for. A piece
  // that is asked for again in the middle counts as the one that it was.
  return reads_outstanding() < std::max<std::uint32_t>(1, max_reads_);
}

void Requester::set_patience(const Patience& patience) {
  timeout_ = patience.timeout;
  retry_count_ = retries_left_ = patience.retry_count;
  rnr_retry_ = rnr_retries_left_ = patience.rnr_retry;
  max_reads_ = patience.max_reads;
}

bool Requester::may_send(Time now) const {
  return !failed_ && next_ < end_ && next_ - oldest_ < window_.packets() && now >= rnr_until_;
}

// Work that waits for acknowledgements only: they would let it go.
void Requester::note_window(bool full, Time now) {
  if (window_full_since_ != Time::never())
    counters_.add(trace::QpCounter::WindowFullPs, now - window_full_since_);
  window_full_since_ = full ? now : Time::never();
}

// Executes the local work whose turn has come. False if one that lies before the next packet is
// still waiting, or was refused; those before it complete all the same.
bool Requester::execute_locals() {
  bool all = true;
  for (Operation& op : work_) {
    if (op.first > next_) break;
    if (!op.is_local() || op.executed) continue;
    // A fenced one waits for all packets before it (CASES C23), not for local work that is done.
    if (op.work.status != Status::Success || (op.work.fence && oldest_ < op.first)) {
      all = false;
      break;
    }
    if (const trace::Reason refused = memory_.execute_local(op.work.work)) {
      op.work.status =
          op.work.opcode == WorkOpcode::BindWindow ? Status::MwBind : Status::LocalQpOperation;
      op.work.reason = refused;
      all = false;
      break;
    }
    op.executed = true;
    if (--locals_ == 0) break;
  }
  settle();
  return all;
}

std::optional<Emission> Requester::poll_packet(Time now) {
  check_invariants();
  if (locals_ != 0 && !holding_ && !execute_locals()) return std::nullopt;
  if (!may_send(now)) {
    note_window(!failed_ && next_ < end_ && next_ - oldest_ >= window_.packets(), now);
    return std::nullopt;
  }
  const Operation* op = operation_at(next_);
  ASSERT(op != nullptr);
  if (holding_ && op->first >= highest_sent_) return std::nullopt;
  if (op->work.status != Status::Success) return std::nullopt;  // refused: fails in its turn
  // C9-105: a fenced request starts when the READs and atomics before it are complete.
  if (op->work.fence && next_ == op->first && std::ranges::any_of(work_, [&](const Operation& o) {
        return o.awaits_response() && o.first < op->first;
      }))
    return std::nullopt;
  const bool allowed = !op->awaits_response() || is_read_allowed();
  note_window(!allowed, now);
  if (!allowed) return std::nullopt;

  Emission out = op->is_read()                ? emit_read(*op, next_)
                 : is_atomic(op->work.opcode) ? emit_atomic(*op, next_)
                                              : emit_request(*op, next_);
  out.again = next_ < highest_sent_;
  if (out.again) counters_.add(trace::QpCounter::Retransmits);
  next_ = op->is_read() ? piece_end(*op, next_) : next_ + 1;
  highest_sent_ = std::max(highest_sent_, next_);
  if (ack_deadline_ == Time::never()) restart_timer(now);
  check_invariants();
  return out;
}

Emission Requester::emission_of(wire::Operation operation, const Operation& op,
                                std::uint64_t at) const {
  Emission out;
  wire::Headers& h = out.headers;
  h.bth.opcode = wire::opcode_of(service_, operation);
  h.bth.pkey = wire::kDefaultPkey;
  h.bth.dest_qpn = dest_qpn_;
  h.bth.psn = psn_of(at);
  if (service_ == wire::Service::Xrc) h.xrc_srqn = op.work.xrc_srqn;
  return out;
}

Emission Requester::emit_request(const Operation& op, std::uint64_t at) const {
  Emission out = message_packet(service_, op.work, at - op.first, mtu_);
  wire::Headers& h = out.headers;
  h.bth.dest_qpn = dest_qpn_;
  h.bth.psn = psn_of(at);
  if (service_ == wire::Service::Xrc) h.xrc_srqn = op.work.xrc_srqn;
  // An ACK is due at the end of a message, when the window is about to close, and now and then.
  h.bth.ack_request = at + 1 == op.behind() || at + 1 == end_ ||
                      at + 1 - oldest_ == window_.packets() || (at + 1) % kAckEveryPackets == 0;
  const std::uint64_t window_left = (window_.packets() - 1 - (at - oldest_)) * mtu_;
  out.payload.left = std::min(out.payload.left, window_left);
  return out;
}

Emission Requester::emit_read(const Operation& op, std::uint64_t at) const {
  const std::uint64_t offset = (at - op.first) * mtu_;
  const std::uint64_t until =
      std::min<std::uint64_t>((piece_end(op, at) - op.first) * mtu_, op.work.bytes);
  Emission out = emission_of(wire::Operation::ReadRequest, op, at);
  wire::Headers& h = out.headers;
  h.bth.ack_request = true;
  h.remote_address = op.work.remote_address + offset;  // modulo 2^64, as the peer would count
  h.rkey = op.work.rkey;
  h.dma_length = static_cast<std::uint32_t>(until - offset);
  return out;
}

Emission Requester::emit_atomic(const Operation& op, std::uint64_t at) const {
  const bool is_swap = op.work.opcode == WorkOpcode::CompareSwap;
  Emission out =
      emission_of(is_swap ? wire::Operation::CompareSwap : wire::Operation::FetchAdd, op, at);
  wire::Headers& h = out.headers;
  h.bth.ack_request = true;
  h.remote_address = op.work.remote_address;
  h.rkey = op.work.rkey;
  h.swap_or_add = op.work.swap_or_add;
  if (is_swap) h.compare = op.work.compare;
  return out;
}

std::optional<SendCompletion> Requester::poll_completion() {
  if (done_.empty()) return std::nullopt;
  const SendCompletion front = done_.front();
  done_.pop_front();
  return front;
}

Time Requester::next_deadline() const {
  if (failed_ || work_.empty()) return Time::never();
  if (rnr_until_ > Time{0} && next_ < end_) return earlier(rnr_until_, ack_deadline_);
  return ack_deadline_;
}

}  // namespace softhca::transport
