#include "lossy_worlds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/world.h"
#include "worlds.h"

namespace softhca::sim {
namespace {

using transport::QpType;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint32_t kHeaderBytes = 40;  // in front of a datagram
constexpr std::uint32_t kReceives = 48;     // more than the sender has under way
constexpr std::uint32_t kUnderWay = 16;
constexpr std::uint64_t kReceiveTag = std::uint64_t{1} << 63;
constexpr std::byte kUntouched{0xee};

struct Message {
  WorkOpcode opcode{};
  std::vector<std::byte> bytes;  // its number first, then what nothing else has
  VirtAddr source;
  VirtAddr target;  // of a WRITE
  std::uint32_t immediate{};
  std::uint32_t arrived{};

  bool is_write() const { return opcode == WorkOpcode::Write || opcode == WorkOpcode::WriteImm; }
  bool with_immediate() const {
    return opcode == WorkOpcode::SendImm || opcode == WorkOpcode::WriteImm;
  }
  bool is_told() const { return opcode != WorkOpcode::Write; }
};

// All messages of one end to the other.
class Flow {
 public:
  Flow(World& world, const Connection::End& from, const Connection::End& to, Prng& prng,
       std::uint32_t mtu)
      : world_(world), from_(from), to_(to), is_datagram_(from.qp->type() == QpType::Ud) {
    const std::uint32_t count = 10 + static_cast<std::uint32_t>(prng.below(30));
    const std::uint64_t longest = is_datagram_ ? mtu - 8 : 20'000;
    for (std::uint32_t i = 0; i < count; ++i) plan(i, longest, prng);
    from_key_ = registered(from_, sources_bytes_, source_start_);
    to_key_ = registered(to_, targets_bytes_, target_start_);
    for (Message& m : messages_) place(m);
    slot_bytes_ = static_cast<std::uint32_t>(longest) + 16 + kHeaderBytes;
    slots_key_ = registered(to_, std::uint64_t{slot_bytes_} * kReceives, slots_start_);
    for (std::uint32_t slot = 0; slot < kReceives; ++slot) post_receive(slot);
  }

  // Posts those before `end`. REQUIRES: drive() after each step.
  void send_until(std::size_t end) { until_ = end; }
  // From now on everything has to arrive.
  void expect_all() { must_arrive_from_ = next_told_ = posted_; }
  std::size_t size() const { return messages_.size(); }
  bool is_done() const { return !wrong_.empty() || completed_ == until_; }
  std::uint64_t arrived() const { return arrived_; }

  void post() {
    while (posted_ < until_ && posted_ - completed_ < kUnderWay) {
      const Message& m = messages_[posted_];
      const driver::Sge sge{m.source.value, size_of(m), from_key_.value};
      driver::SendRequest request{.wr_id = posted_,
                                  .opcode = m.opcode,
                                  .flags = driver::SendFlag::Signaled,
                                  .sges = {&sge, 1},
                                  .immediate = m.immediate,
                                  .remote_address = m.target.value,
                                  .rkey = to_key_};
      if (is_datagram_) request.target = target();
      if (!from_.host->engine().post_send(*from_.qp, request, false, world_.now())) return;
      ++posted_;
    }
  }
  void on_sent(const driver::Completion& c) {
    if (c.wr_id != completed_ || c.status != Status::Success)
      complain(fmt::format("request {} completed with {} where {} was due", c.wr_id,
                           static_cast<int>(c.status), completed_));
    ++completed_;
  }
  void on_received(const driver::Completion& c) {
    const auto slot = static_cast<std::uint32_t>(c.wr_id & ~kReceiveTag);
    if (c.status != Status::Success)
      return complain(fmt::format("receive failed: {}", static_cast<int>(c.status)));
    if (c.opcode == driver::CompletionOpcode::ReceiveRdmaWithImmediate)
      take_write(c);
    else
      take_send(c, slot);
    post_receive(slot);
  }

  std::string verdict() {
    for (const Message& m : messages_) {
      if (m.arrived != 1 && m.is_told() && number_of(m) >= must_arrive_from_)
        complain(fmt::format("message {} arrived {} times over a good network", number_of(m),
                             m.arrived));
      if (m.is_write()) check_target(m);
    }
    return wrong_;
  }
  void release() {
    release(from_, from_key_);
    release(to_, to_key_);
    release(to_, slots_key_);
  }

 private:
  void plan(std::uint32_t number, std::uint64_t longest, Prng& prng) {
    constexpr std::array kOpcodes{WorkOpcode::Send, WorkOpcode::SendImm, WorkOpcode::Write,
                                  WorkOpcode::WriteImm};
    Message m;
    m.opcode = kOpcodes[prng.below(is_datagram_ ? 2 : kOpcodes.size())];
    m.immediate = number;
    m.bytes.resize(8 + prng.below(prng.chance(1, 3) ? 64 : longest));
    for (std::byte& b : m.bytes) b = static_cast<std::byte>(prng.next());
    store_le(Bytes(m.bytes), 0, number);
    m.source = {sources_bytes_};
    sources_bytes_ += m.bytes.size();
    m.target = {targets_bytes_};
    if (m.is_write()) targets_bytes_ += m.bytes.size();
    messages_.push_back(std::move(m));
  }
  void place(Message& m) {
    m.source = advance(source_start_, m.source.value);
    m.target = advance(target_start_, m.target.value);
    from_.host->run(from_.program);
    from_.host->store(m.source, m.bytes);
  }
  wire::Key registered(const Connection::End& end, std::uint64_t bytes, VirtAddr& start) {
    end.host->run(end.program);
    start = end.host->allocate(bytes + 1);
    end.host->fill(start, bytes + 1, kUntouched);
    const auto region =
        end.host->engine().register_memory(end.pd, start, bytes + 1, {start.value},
                                           driver::AccessFlags::of_bits(1 | 2 | 4), world_.now());
    ASSERT(region);
    return region->key;
  }
  void release(const Connection::End& end, wire::Key key) {
    ASSERT(end.host->engine().deregister_memory(key, world_.now()));
  }
  void post_receive(std::uint32_t slot) {
    const driver::Sge sge{slot_start(slot).value, slot_bytes_, slots_key_.value};
    ASSERT(to_.post_receive({slot | kReceiveTag, {&sge, 1}}, world_.now()));
  }
  VirtAddr slot_start(std::uint32_t slot) const {
    return advance(slots_start_, std::uint64_t{slot} * slot_bytes_);
  }
  driver::DatagramTarget target() const {
    driver::DatagramTarget to;
    to.address.is_global = true;
    to.address.destination = to_.host->gid();
    to.pd = from_.pd;
    to.qpn = to_.qp->qpn();
    to.qkey = kWorldQkey;
    return to;
  }

  void take_send(const driver::Completion& c, std::uint32_t slot) {
    const std::uint32_t in_front = is_datagram_ ? kHeaderBytes : 0;
    if (c.byte_count < in_front + 8) return complain("a message is too short");
    const std::vector<std::byte> bytes =
        to_.host->load(advance(slot_start(slot), in_front), c.byte_count - in_front);
    const auto number = load_le<std::uint32_t>(bytes, 0);
    if (number >= posted_ || messages_[number].is_write() || messages_[number].bytes != bytes)
      return complain(fmt::format("message {} is not what was sent", number));
    take(number, c);
  }
  void take_write(const driver::Completion& c) {
    const std::uint32_t number = c.immediate;
    if (number >= posted_ || messages_[number].opcode != WorkOpcode::WriteImm ||
        c.byte_count != size_of(messages_[number]))
      return complain(fmt::format("WRITE {} is not what was sent", number));
    if (to_.host->load(messages_[number].target, c.byte_count) != messages_[number].bytes)
      complain(fmt::format("WRITE {} is told, but not all there", number));
    take(number, c);
  }
  void take(std::uint32_t number, const driver::Completion& c) {
    Message& m = messages_[number];
    if (c.with_immediate != m.with_immediate() || (c.with_immediate && c.immediate != m.immediate))
      complain(fmt::format("message {}: wrong immediate data", number));
    ++m.arrived;
    ++arrived_;
    if (number < must_arrive_from_) return;
    while (next_told_ < number && !messages_[next_told_].is_told()) ++next_told_;
    if (number != next_told_)
      complain(fmt::format("message {} arrived where {} was due", number, next_told_));
    next_told_ = number + 1;
  }
  void check_target(const Message& m) {
    const std::vector<std::byte> there = to_.host->load(m.target, m.bytes.size());
    const auto placed = std::ranges::mismatch(there, m.bytes).in1;
    const bool must_be_whole = number_of(m) >= must_arrive_from_;
    if (must_be_whole && placed != there.end())
      complain(fmt::format("WRITE {} is not whole over a good network", number_of(m)));
    if (!std::all_of(placed, there.end(), [](std::byte b) { return b == kUntouched; }))
      complain(fmt::format("WRITE {} has something behind its beginning", number_of(m)));
  }
  static std::uint32_t size_of(const Message& m) {
    return static_cast<std::uint32_t>(m.bytes.size());
  }
  static std::uint32_t number_of(const Message& m) { return m.immediate; }
  void complain(const std::string& what) {
    if (wrong_.empty()) wrong_ = fmt::format("at {} ns: {}", world_.now().ps / 1000, what);
  }

  World& world_;
  Connection::End from_, to_;
  bool is_datagram_;
  std::vector<Message> messages_;
  std::uint64_t sources_bytes_ = 0, targets_bytes_ = 0;
  VirtAddr source_start_, target_start_, slots_start_;
  wire::Key from_key_, to_key_, slots_key_;
  std::uint32_t slot_bytes_ = 0;
  std::size_t until_ = 0, posted_ = 0, completed_ = 0;
  std::size_t must_arrive_from_ = SIZE_MAX, next_told_ = SIZE_MAX;
  std::uint64_t arrived_ = 0;
  std::string wrong_;
};

void take_completions(const Connection::End& end, Flow& out, Flow& in) {
  std::array<driver::Completion, 8> completions;
  while (const std::size_t count = end.cq->poll(completions))
    for (const driver::Completion& c : std::span(completions).first(count))
      (c.wr_id & kReceiveTag) != 0 ? in.on_received(c) : out.on_sent(c);
}

}  // namespace

LossyOutcome run_lossy_world(std::uint64_t seed, Roads roads) {
  Prng prng(seed);
  WorldSettings world_settings = random_settings(prng);
  build(roads, world_settings);
  World world(world_settings);
  ConnectionSettings settings;
  settings.type = prng.chance(1, 2) ? QpType::Uc : QpType::Ud;
  settings.mtu = settings.type == QpType::Ud ? 4096 : 256u << prng.below(5);  // Ud: the port's
  settings.psn_a = {static_cast<std::uint32_t>(prng.below(1u << 24))};
  settings.psn_b = {static_cast<std::uint32_t>(0xff'ff00 + prng.below(256))};
  settings.makes_shared_a = prng.chance(1, 3);
  settings.makes_shared_b = prng.chance(1, 3);
  const Connection pair = connect(world, world.host(0), world.host(1), settings);
  std::array flows{Flow(world, pair.a, pair.b, prng, settings.mtu),
                   Flow(world, pair.b, pair.a, prng, settings.mtu)};
  const auto done = [&] {
    for (Flow& flow : flows) flow.post();
    take_completions(pair.a, flows[0], flows[1]);
    take_completions(pair.b, flows[1], flows[0]);
    return flows[0].is_done() && flows[1].is_done();
  };
  const auto run = [&] {
    const bool all = world.run_until(done, seconds(1));
    world.run_until([&] { return done() && false; }, milliseconds(10));  // what is on its way
    return all;
  };

  for (Flow& flow : flows) flow.send_until(flow.size() / 2);
  bool all = run();
  world.network().set_costs({.delay = microseconds(1)});
  for (Flow& flow : flows) flow.expect_all(), flow.send_until(flow.size());
  all = run() && all;

  LossyOutcome outcome;
  for (Flow& flow : flows)
    if (outcome.wrong.empty()) outcome.wrong = flow.verdict();
  if (outcome.wrong.empty() && !all) outcome.wrong = "not everything completed";
  outcome.journal = world.journal_hash();
  outcome.received = flows[0].arrived() + flows[1].arrived();
  outcome.lost = world.network().statistics().lost;
  for (Flow& flow : flows) flow.release();
  for (const Connection::End& end : {pair.a, pair.b}) disconnect(world, end);
  for (std::size_t i = 0; i < 2; ++i)
    if (world.host(i).pins().pages_held() != 0) outcome.wrong += " pins left";
  return outcome;
}

}  // namespace softhca::sim
