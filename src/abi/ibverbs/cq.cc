#include "abi/ibverbs/cq.h"

#include <algorithm>
#include <cstddef>

#include "abi/entry.h"
#include "base/bytes.h"
#include "base/uncleared.h"
#include "os/clock.h"

namespace softhca::abi {
namespace {

constexpr std::size_t kBatch = 16;  // completions taken off the ring at a time

unsigned flags_of(const driver::Completion& completion) {
  unsigned flags = 0;
  if (completion.with_immediate) flags |= IBV_WC_WITH_IMM;
  if (completion.with_network_header) flags |= IBV_WC_GRH;
  if (completion.with_invalidation) flags |= IBV_WC_WITH_INV;
  if (completion.wants_sync) flags |= IBV_WC_TM_SYNC_REQ;
  if (completion.tag_matched) flags |= IBV_WC_TM_MATCH;
  if (completion.tag_data_here) flags |= IBV_WC_TM_DATA_VALID;
  return flags;
}

void write(const driver::Completion& completion, ibv_wc& wc) {
  wc = {};
  wc.wr_id = completion.wr_id;
  wc.status = static_cast<ibv_wc_status>(completion.status);
  wc.opcode = static_cast<ibv_wc_opcode>(completion.opcode);
  wc.vendor_err = static_cast<std::uint32_t>(completion.reason);
  wc.byte_len = completion.byte_count;
  wc.qp_num = completion.qpn.value;
  if (completion.with_immediate) {
    wc.imm_data = byte_swapped(completion.immediate);
  }
  if (completion.with_invalidation) wc.invalidated_rkey = completion.immediate;
  wc.src_qp = completion.source_qpn.value;
  wc.wc_flags = flags_of(completion);
}

// Members that a completion of this device has. VLANs are not among them; asking for one fails at
// creation.
constexpr std::uint64_t kMembers = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_FLOW_TAG |
                                   IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

constexpr std::uint32_t kCreateFlags =
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

// The device's clock runs with the system's; the time of day may be set while it does. So a time
// stamp is as long ago by one as by the other.
std::uint64_t time_of_day(Time at, driver::LiveDevice& device) {
  const std::int64_t ago_ps = (device.clock_now() - at).ps;
  return static_cast<std::uint64_t>(os::unix_time_ns() - ago_ps / 1000);
}

const driver::Completion& current(ibv_cq_ex* cq) { return Cq::of(cq).current(); }

// For members that no completion of this device has.
template <class T>
T nothing(ibv_cq_ex*) {
  return T{};
}

}  // namespace

Cq::Cq(Context& owner, const Request& request)
    : ibv_cq_ex{},
      EventSubject(owner, mutex, cond, async_events_completed),
      domain_(request.domain),
      single_threaded_(request.single_threaded),
      tells_time_of_day_(request.tells_time_of_day),
      completion_events_(mutex, cond, comp_events_completed) {
  context = &owner.context();
  channel = request.channel;
  cq_context = request.cq_context;
  fill_slots(*this);
  if (channel != nullptr) Channel::of(channel).attach();
}

Cq::~Cq() {
  if (channel == nullptr) return;
  Channel::of(channel).events().forget(completion_events_);
  Channel::of(channel).detach();
}

Outcome<Cq*> Cq::create(Context& owner, const Request& request) {
  if (request.vector >= nic::kCompletionVectors) return Errno{EINVAL};
  if (request.channel != nullptr && request.channel->context != &owner.context())
    return Errno{EINVAL};
  std::unique_ptr<Cq> cq(new Cq(owner, request));
  driver::Engine::CompletionQueueSpec spec{
      .entries = request.entries, .events = cq.get(), .loses_overrun = request.ignores_overrun};
  auto lent =
      LentMemory::from(request.domain, driver::Engine::ring_bytes(spec), LentFor::CompletionQueue);
  if (!lent) return lent.error();
  cq->memory_ = std::move(*lent);
  spec.lent = cq->memory_.bytes();
  const auto queue =
      owner.command([&](driver::Engine& engine, Time now) { return engine.create_cq(spec, now); });
  if (!queue) return queue.error();
  cq->queue_ = *queue;
  cq->handle = cq->queue_->cqn();
  cq->cqe = static_cast<int>(cq->queue_->capacity());
  owner.adopt(*cq);
  return cq.release();
}

Outcome<void> Cq::destroy() {
  const auto gone = owner().take_off(
      [&](driver::Engine& engine, Time now) { return engine.destroy_cq(*queue_, now); });
  if (!gone) return gone;
  if (channel != nullptr) Channel::of(channel).events().forget(completion_events_);
  wait_for(completion_events_, "cq", handle);
  retire("cq", handle);
  return {};
}

void Cq::abandon(driver::Engine& engine, Time now) {
  [[maybe_unused]] const auto gone = engine.destroy_cq(*queue_, now);
}

// In the child of a fork every ring is empty (os/reserved_memory.h), so asking what this is can
// wait until nothing was found; but for memory that the program lent.
Outcome<bool> Cq::has_any() {
  if (!memory_.bytes().empty() && owner().is_left_behind()) return owner().left_behind();
  if (!queue_->is_empty()) return true;
  if (owner().is_left_behind()) return owner().left_behind();
  owner().device().drive();
  return !queue_->is_empty();
}

void Cq::completion_event(driver::CompletionQueue&) {
  if (channel == nullptr) return;
  ibv_async_event event{};
  event.element.cq = verbs();
  Channel::of(channel).events().post(event, &completion_events_);
}

void Cq::async_event(driver::AsyncEventType type, driver::QueuePair*, driver::CompletionQueue*,
                     const trace::Reason&) {
  raise(static_cast<ibv_event_type>(type), {.cq = verbs()});
}

int poll_cq(ibv_cq* verbs, int num_entries, ibv_wc* wc) noexcept {
  return answer_minus_one([&]() -> Outcome<int> {
    Cq& cq = Cq::of(verbs);
    if (num_entries <= 0) return 0;
    const auto any = cq.has_any();
    if (!any) return any.error();
    if (!*any) return 0;
    Uncleared<driver::Completion, kBatch> batch;
    int filled = 0;
    while (filled < num_entries) {
      const auto room = std::min(static_cast<std::size_t>(num_entries - filled), kBatch);
      const std::size_t found = cq.queue()->poll({batch.data(), room});
      for (std::size_t i = 0; i < found; ++i) write(batch.data()[i], wc[filled++]);
      if (found < room) break;
    }
    return filled;
  });
}

int req_notify_cq(ibv_cq* verbs, int solicited_only) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Cq& cq = Cq::of(verbs);
    const auto armed = cq.owner().command([&](driver::Engine& engine, Time now) -> Outcome<void> {
      engine.arm_cq(*cq.queue(), solicited_only != 0, now);
      return {};
    });
    if (!armed) return armed;
    if (cq.channel != nullptr) cq.owner().device().expect_sleep();
    return {};
  });
}

int Cq::begin() {
  // Before the lock, which a thread of the parent may hold for ever.
  if (owner().is_left_behind()) return errno = owner().left_behind().code;
  if (!single_threaded_) polling_.lock();
  const int found = take_next();
  if (found != 0 && !single_threaded_) polling_.unlock();
  return found;
}

int Cq::take_next() {
  const auto outcome = caught([&] { return has_any(); });
  if (!outcome) return outcome.error().code;
  if (queue_->poll({&current_, 1}) == 0) return ENOENT;
  wr_id = current_.wr_id;
  status = static_cast<ibv_wc_status>(current_.status);
  if (tells_time_of_day_) current_time_of_day_ = time_of_day(current_.at, owner().device());
  return 0;
}

void Cq::end() {
  if (!single_threaded_) polling_.unlock();
}

void fill_slots(ibv_cq_ex& cq) {
  cq.start_poll = [](ibv_cq_ex* one, ibv_poll_cq_attr* attributes) {
    if (attributes != nullptr && attributes->comp_mask != 0) return EINVAL;
    return Cq::of(one).begin();
  };
  cq.next_poll = [](ibv_cq_ex* one) { return Cq::of(one).take_next(); };
  cq.end_poll = [](ibv_cq_ex* one) { Cq::of(one).end(); };
  cq.read_opcode = [](ibv_cq_ex* one) { return static_cast<ibv_wc_opcode>(current(one).opcode); };
  cq.read_vendor_err = [](ibv_cq_ex* one) {
    return static_cast<std::uint32_t>(current(one).reason);
  };
  cq.read_byte_len = [](ibv_cq_ex* one) { return current(one).byte_count; };
  cq.read_imm_data = [](ibv_cq_ex* one) -> __be32 {  // or the key, which is a number of this host
    const driver::Completion& completion = current(one);
    return completion.with_invalidation ? completion.immediate : byte_swapped(completion.immediate);
  };
  cq.read_qp_num = [](ibv_cq_ex* one) { return current(one).qpn.value; };
  cq.read_wc_flags = [](ibv_cq_ex* one) -> unsigned { return flags_of(current(one)); };
  cq.read_src_qp = [](ibv_cq_ex* one) { return current(one).source_qpn.value; };
  cq.read_slid = nothing<std::uint32_t>;
  cq.read_sl = nothing<std::uint8_t>;
  cq.read_dlid_path_bits = nothing<std::uint8_t>;
  cq.read_completion_ts = [](ibv_cq_ex* one) { return device_ticks(current(one).at); };
  cq.read_cvlan = nothing<std::uint16_t>;
  cq.read_flow_tag = [](ibv_cq_ex* one) { return current(one).flow_tag; };
  cq.read_tm_info = [](ibv_cq_ex* one, ibv_wc_tm_info* tag) {
    *tag = {.tag = current(one).tag, .priv = current(one).flow_tag};
  };
  cq.read_completion_wallclock_ns = [](ibv_cq_ex* one) {
    return Cq::of(one).current_time_of_day();
  };
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_cq_ex*> {
    const std::uint32_t mask = attributes->comp_mask;
    const std::uint32_t flags = (mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) ? attributes->flags : 0;
    constexpr std::uint32_t kKnown = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if ((mask & ~kKnown) != 0) return Errno{EOPNOTSUPP};
    ibv_pd* const domain = (mask & IBV_CQ_INIT_ATTR_MASK_PD) ? attributes->parent_domain : nullptr;
    if ((mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0 &&
        (domain == nullptr || domain->context != context || !Pd::of(domain).is_parent()))
      return Errno{EINVAL};
    if ((flags & ~kCreateFlags) != 0) return Errno{EOPNOTSUPP};
    if ((attributes->wc_flags & ~kMembers) != 0) return Errno{EOPNOTSUPP};
    const auto cq =
        Cq::create(Context::of(context),
                   {.entries = attributes->cqe,
                    .cq_context = attributes->cq_context,
                    .channel = attributes->channel,
                    .vector = attributes->comp_vector,
                    .single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0,
                    .ignores_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0,
                    .tells_time_of_day =
                        (attributes->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0,
                    .domain = domain == nullptr ? nullptr : &Pd::of(domain)});
    if (!cq) return cq.error();
    return *cq;
  });
}

VERB("IBVERBS_1.1", ibv_cq*, ibv_create_cq,
     (ibv_context * context, int cqe, void* cq_context, ibv_comp_channel* channel,
      int comp_vector)) {
  return answer_pointer([&]() -> Outcome<ibv_cq*> {
    if (cqe < 1 || comp_vector < 0) return Errno{EINVAL};
    const auto cq =
        Cq::create(Context::of(context), {.entries = static_cast<std::uint32_t>(cqe),
                                          .cq_context = cq_context,
                                          .channel = channel,
                                          .vector = static_cast<std::uint32_t>(comp_vector)});
    if (!cq) return cq.error();
    return (*cq)->verbs();
  });
}

Outcome<void> Cq::resize(int entries) {
  if (entries < 1) return Errno{EINVAL};
  const auto wanted = static_cast<std::uint32_t>(entries);
  return owner().command([&](driver::Engine& engine, Time now) {
    const auto resized = engine.resize_cq(*queue_, wanted, now);
    if (resized) cqe = static_cast<int>(queue_->capacity());
    return resized;
  });
}

VERB("IBVERBS_1.1", int, ibv_resize_cq, (ibv_cq * cq, int cqe)) {
  return answer_errno([&] { return Cq::of(cq).resize(cqe); });
}

int modify_cq(ibv_cq* verbs, ibv_modify_cq_attr* attributes) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    if (attributes == nullptr || attributes->attr_mask != IBV_CQ_ATTR_MODERATE)
      return Errno{EINVAL};
    const nic::Moderation rule{attributes->moderate.cq_count,
                               microseconds(attributes->moderate.cq_period)};
    Cq& cq = Cq::of(verbs);
    return cq.owner().command([&](driver::Engine& engine, Time now) -> Outcome<void> {
      engine.moderate_cq(*cq.queue(), rule, now);
      return {};
    });
  });
}

int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    if ((values->comp_mask & ~std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return Errno{EINVAL};
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    if (values->comp_mask == 0) return {};
    // Ticks, all of them in the second member, as devices fill it in.
    const Time now = Context::of(context).device().clock_now();
    values->raw_clock = {0, static_cast<long>(device_ticks(now))};
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_destroy_cq, (ibv_cq * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Cq& cq = Cq::of(verbs);
    const auto gone = cq.destroy();
    if (gone) delete &cq;
    return gone;
  });
}

}  // namespace softhca::abi
