// The peer's answers: whatever acknowledgements, refusals and responses come, in whatever order,
// late or never, each request completes once and in order, a response lands within its request's
// bytes and behind the ones before it, and nothing succeeds that was not sent and answered.
//
// The input is a script: settings, then steps of one byte and their operands.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/cursor.h"
#include "transport/requester.h"

namespace softhca::transport {
namespace {

constexpr std::uint32_t kMtu = 256;
constexpr std::uint32_t kWorkAtMost = 48;

// The peer and the device around a requester, and what they know of each request.
class Bench final : public MemoryPort {
 public:
  explicit Bench(ConstBytes script)
      : script_(script),
        initial_(wire::Psn{0xff'fff0}.plus(byte())),
        requester_({.dest_qpn = {0x5000},
                    .initial_psn = initial_,
                    .mtu = kMtu,
                    .timeout = milliseconds(1),
                    .retry_count = static_cast<std::uint8_t>(byte() & 7),
                    .rnr_retry = static_cast<std::uint8_t>(byte() & 7),
                    .max_reads = static_cast<std::uint8_t>(byte() & 7)},
                   *this, counters_) {}

  void run() {
    while (script_.left() != 0) step();
    finish();
  }

  trace::Reason place(const PayloadRef& to) override {
    ASSERT(to.place == PayloadRef::Place::SendWork && to.work < posted_.size());
    Posted& posted = posted_[to.work];
    ASSERT(brings_bytes(posted.work.opcode) && to.offset == posted.placed);
    posted.placed += to.bytes;
    ASSERT(posted.placed <= bytes_of(posted.work));
    return refusal(0x0f);
  }
  trace::Reason execute_local(std::uint32_t work) override {
    ASSERT(work < posted_.size() && is_local(posted_[work].work.opcode));
    ASSERT(!posted_[work].executed);
    posted_[work].executed = true;
    return refusal(0x07);
  }
  // A requester has no reason to ask for any of these.
  trace::Reason check_remote(RemoteRight, wire::Key, std::uint64_t, std::uint64_t) override {
    std::abort();
  }
  trace::Reason check_shared_queue(std::uint32_t) override { std::abort(); }
  Result<std::uint64_t, trace::Reason> execute_atomic(const AtomicOperation&) override {
    std::abort();
  }
  trace::Reason invalidate(wire::Key) override { std::abort(); }
  std::optional<ReceiveSlot> take_receive() override { std::abort(); }

 private:
  // Zero behind the end.
  std::uint8_t byte() { return script_.take_be<std::uint8_t>(); }

  struct Posted {
    SendWork work;
    std::uint64_t behind{};  // the number behind its last packet
    std::uint64_t placed{};  // bytes of responses
    bool executed{};         // local work
  };

  static std::uint64_t bytes_of(const SendWork& work) {
    return is_atomic(work.opcode) ? kAtomicBytes : work.bytes;
  }
  // One call in 16 or so is refused.
  trace::Reason refusal(std::uint8_t mask) {
    const bool is_refused = (byte() & mask) == mask;
    return is_refused ? trace::Reason{.id = trace::ReasonId::FrameGone} : trace::Reason{};
  }

  void step() {
    const std::uint8_t what = byte();
    switch (what % 8) {
      case 0:
        post();
        break;
      case 1:
        send(what / 8 + 1);
        break;
      case 2:
      case 3:
        acknowledge();
        break;
      case 4:
      case 5:
        respond();
        break;
      case 6:
        pass(microseconds(std::int64_t{100} * (what / 8 + 1)));
        break;
      default:
        disturb();
        break;
    }
    collect();
  }

  void post() {
    constexpr WorkOpcode kOpcodes[] = {WorkOpcode::Write,          WorkOpcode::WriteImm,
                                       WorkOpcode::Send,           WorkOpcode::SendImm,
                                       WorkOpcode::Read,           WorkOpcode::CompareSwap,
                                       WorkOpcode::FetchAdd,       WorkOpcode::LocalInvalidate,
                                       WorkOpcode::BindWindow,     WorkOpcode::Read,
                                       WorkOpcode::SendInvalidate, WorkOpcode::AtomicWrite};
    if (posted_.size() == kWorkAtMost || !requester_.wants_work()) return;
    const std::uint8_t flags = byte();
    SendWork work;
    work.work = static_cast<std::uint32_t>(posted_.size());
    work.opcode = kOpcodes[byte() % std::size(kOpcodes)];
    // Up to 40 packets: a READ of several pieces.
    work.bytes = byte() * std::uint64_t{40};
    if (is_atomic(work.opcode) || work.opcode == WorkOpcode::AtomicWrite) work.bytes = kAtomicBytes;
    if (is_local(work.opcode)) work.bytes = 0;
    work.signaled = (flags & 1) != 0;
    work.fence = (flags & 2) != 0;
    if (flags >= 0xf8) {  // refused locally
      work.status = Status::LocalProtection;
      work.reason = {.id = trace::ReasonId::FrameGone};
    }
    const std::uint64_t first = posted_.empty() ? 0 : posted_.back().behind;
    posted_.push_back({work, first + packets_of(work, kMtu)});
    requester_.post(work);
  }

  void send(int count) {
    while (count-- > 0) {
      const auto out = requester_.poll_packet(now_);
      if (!out) return;
      ASSERT(!requester_.failed());
      const wire::Bth& bth = out->headers.bth;
      const auto* const info = wire::find_opcode(bth.opcode);
      ASSERT(info != nullptr && info->is_request() && bth.dest_qpn.value == 0x5000);
      const std::int32_t number = wire::ahead(bth.psn, initial_);
      ASSERT(number >= 0 && !posted_.empty());
      const auto at = static_cast<std::uint64_t>(number);
      ASSERT(at < posted_.back().behind && (out->again || at == sent_));
      const std::uint64_t last =
          info->kind == wire::Kind::ReadRequest
              ? at + std::max<std::uint64_t>(1, (out->headers.dma_length + kMtu - 1) / kMtu)
              : at + 1;
      sent_ = std::max(sent_, last);
      if (out->payload.place == PayloadRef::Place::SendWork)
        ASSERT(out->payload.offset + out->payload.bytes <= posted_[out->payload.work].work.bytes);
    }
  }

  // A PSN near what is next to be completed; anywhere for some.
  wire::Psn psn() {
    const std::uint8_t how = byte();
    if (how >= 0xf8) return wire::Psn{std::uint32_t{how} << 16 | byte()};
    const std::uint64_t front = completed_ == 0 ? 0 : posted_[completed_ - 1].behind;
    return initial_.plus(static_cast<std::uint32_t>(front)).plus(how % 64).minus(how / 64);
  }

  void note_answer(wire::Psn psn) {
    const std::int32_t number = wire::ahead(psn, initial_);
    if (number >= 0 && static_cast<std::uint64_t>(number) < sent_)
      answered_ = std::max(answered_, static_cast<std::uint64_t>(number) + 1);
  }

  void acknowledge() {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, wire::Operation::Acknowledge);
    h.bth.psn = psn();
    const std::uint8_t syndrome = byte();
    h.aeth_kind = static_cast<wire::AethKind>(syndrome >> 6);
    h.aeth_value = syndrome & 0x1f;
    note_answer(h.bth.psn);
    requester_.on_acknowledge(h, now_);
  }

  void respond() {
    constexpr wire::Operation kOperations[] = {
        wire::Operation::ReadResponseFirst, wire::Operation::ReadResponseMiddle,
        wire::Operation::ReadResponseLast, wire::Operation::ReadResponseOnly,
        wire::Operation::AtomicAcknowledge};
    const std::uint8_t what = byte();
    wire::Headers h;
    h.bth.psn = psn();
    const wire::Operation operation = kOperations[what % std::size(kOperations)];
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, operation);
    note_answer(h.bth.psn);
    if (operation == wire::Operation::AtomicAcknowledge)
      return requester_.on_atomic_response(h, now_);
    const bool is_full = (what & 0x80) == 0;
    const std::uint32_t bytes = is_full ? kMtu : byte() * 40u % (kMtu + 8);
    requester_.on_read_response(*wire::find_opcode(h.bth.opcode), h, bytes, now_);
  }

  void disturb() {
    const std::uint8_t what = byte();
    switch (what % 4) {
      case 0:
        return requester_.hold((what & 4) != 0);
      case 1:
        if (!posted_.empty())
          requester_.on_payload_fault(what % static_cast<std::uint32_t>(posted_.size()),
                                      Status::LocalProtection, {.id = trace::ReasonId::FrameGone});
        return;
      case 2:
        return requester_.set_patience({.timeout = milliseconds(1 + what % 3),
                                        .retry_count = static_cast<std::uint8_t>(what & 7),
                                        .rnr_retry = static_cast<std::uint8_t>(what >> 5),
                                        .max_reads = static_cast<std::uint8_t>(what & 3)});
      default:
        if (what >= 0xf8) requester_.fail(Status::Flushed, {.id = trace::ReasonId::Flushed});
        return;
    }
  }

  void pass(Duration time) {
    now_ = now_ + time;
    if (requester_.next_deadline() <= now_) requester_.on_time(now_);
  }

  void collect() {
    while (const auto done = requester_.poll_completion()) {
      ASSERT(completed_ < posted_.size() && done->work == completed_);
      const Posted& posted = posted_[completed_++];
      ASSERT(!failed_ || done->status == Status::Flushed);
      if (done->status != Status::Success) {
        failed_ = true;
        continue;
      }
      ASSERT(sent_ >= posted.behind);
      if (is_local(posted.work.opcode)) {
        ASSERT(posted.executed);
        continue;
      }
      ASSERT(answered_ >= posted.behind);
      if (brings_bytes(posted.work.opcode)) ASSERT(posted.placed == bytes_of(posted.work));
    }
  }

  // Nobody answers any more: what is left fails in the time that the retries take.
  void finish() {
    requester_.hold(false);
    for (int i = 0; i < 10'000 && completed_ < posted_.size(); ++i) {
      send(64);
      pass(milliseconds(10));
      collect();
    }
    ASSERT(completed_ == posted_.size() && requester_.next_deadline() == Time::never());
  }

  Cursor script_;
  wire::Psn initial_;
  trace::QpCounters counters_;
  Requester requester_;
  Time now_{};
  std::vector<Posted> posted_;
  std::size_t completed_ = 0;
  std::uint64_t sent_ = 0;      // the number behind the last packet that left
  std::uint64_t answered_ = 0;  // the number behind the last that an answer was about
  bool failed_ = false;
};

}  // namespace
}  // namespace softhca::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  softhca::transport::Bench(std::as_bytes(std::span(data, size))).run();
  return 0;
}
