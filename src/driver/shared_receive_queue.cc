// The engine's verbs on shared receive queues and XRC domains.
#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "driver/engine.h"
#include "driver/engine_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

namespace {

Reason check_requests(std::uint32_t requests) {
  if (requests >= 1 && requests <= nic::kMaxQueueEntries) return {};
  return {.id = ReasonId::AttributeOutOfRange,
          .length = requests,
          .low = 1,
          .high = nic::kMaxQueueEntries};
}

}  // namespace

std::uint64_t Engine::ring_bytes(const SrqSpec& spec) {
  if (check_requests(spec.capacity.requests) || spec.capacity.sges > nic::kMaxSges) return 0;
  return ring_pages(WorkRing::receive_bytes(std::bit_ceil(spec.capacity.requests),
                                            std::max(1u, spec.capacity.sges)));
}

Result<SharedReceiveQueue*, Reason> Engine::create_srq(const SrqSpec& spec, Time now) {
  EngineState& s = *state_;
  if (const Reason bad = check_requests(spec.capacity.requests)) return bad;
  const Profile& profile = s.parts.profile;
  if (spec.capacity.sges > profile.shared_sges)
    return Reason{.id = ReasonId::AttributeOutOfRange,
                  .length = spec.capacity.sges,
                  .high = profile.shared_sges};
  if (spec.capacity.tags != 0 && !profile.has(Feature::TagMatching))
    return s.not_offered("matching of tags");
  if (spec.capacity.tags > nic::kMaxTags)
    return Reason{
        .id = ReasonId::AttributeOutOfRange, .length = spec.capacity.tags, .high = nic::kMaxTags};
  const bool matches = spec.capacity.tags != 0;
  if ((spec.xrcd != 0 || matches) != (spec.cq != nullptr) || (spec.xrcd != 0 && matches))
    return Reason{.id = ReasonId::SharedQueueKind};
  auto ring =
      WorkRing::for_receives(std::bit_ceil(spec.capacity.requests),
                             std::max(1u, spec.capacity.sges), s.registrations, now, spec.lent);
  if (!ring) return ring.error();
  const auto srqn = s.device.take_srqn();
  if (!srqn) return Reason{.id = ReasonId::LimitExceeded, .high = nic::kMaxSrqs};
  std::unique_ptr<SharedReceiveQueue> srq(new SharedReceiveQueue);
  srq->srqn_ = *srqn;
  srq->pd_ = spec.pd;
  srq->xrcd_ = spec.xrcd;
  srq->tags_ = spec.capacity.tags;
  srq->cq_ = spec.cq;
  srq->events_ = spec.events;
  srq->ring_ = std::move(*ring);
  srq->record_ = &s.device.srq_record(*srqn);
  s.device.create_srq({.srqn = *srqn,
                       .pd = spec.pd,
                       .xrcd = spec.xrcd,
                       .cqn = spec.cq != nullptr ? spec.cq->cqn() : 0,
                       .tags = spec.capacity.tags,
                       .ring = srq->ring_.place()});
  SharedReceiveQueue* raw = srq.get();
  s.srqs.emplace(*srqn, std::move(srq));
  return raw;
}

Result<void, Reason> Engine::destroy_srq(SharedReceiveQueue& srq, Time) {
  EngineState& s = *state_;
  const bool busy =
      std::ranges::any_of(s.qps, [&](const auto& entry) { return entry.second->srq() == &srq; });
  if (busy) return Reason{.id = ReasonId::ObjectBusy, .object = srq.srqn()};
  const std::uint32_t srqn = srq.srqn();
  s.device.destroy_srq(srqn);
  s.srqs.erase(srqn);
  return {};
}

Result<void, Reason> Engine::resize_srq(SharedReceiveQueue& srq, std::uint32_t requests, Time now) {
  EngineState& s = *state_;
  if (const Reason bad = check_requests(requests)) return bad;
  const std::uint32_t slots = std::bit_ceil(requests);
  const std::uint32_t needed = std::max(srq.waiting(), srq.limit());
  if (slots < needed)
    return Reason{.id = ReasonId::SharedQueueTooSmall,
                  .object = srq.srqn(),
                  .length = requests,
                  .low = needed,
                  .high = nic::kMaxQueueEntries};
  auto fresh = WorkRing::for_receives(slots, srq.ring_.segments, s.registrations, now);
  if (!fresh) return fresh.error();
  fresh->posted = srq.ring_.posted;
  fresh->rung = srq.ring_.rung;
  // The device owns nothing of the old ring but what it has not taken.
  for (std::uint32_t i = fresh->posted - srq.waiting(); i != fresh->posted; ++i)
    std::ranges::copy(srq.ring_.slot(i), fresh->slot(i).begin());
  s.device.move_srq(srq.srqn(), fresh->place());
  srq.ring_ = std::move(*fresh);
  return {};
}

Result<void, Reason> Engine::arm_srq(SharedReceiveQueue& srq, std::uint32_t limit, Time now) {
  if (limit > srq.capacity().requests)
    return Reason{.id = ReasonId::SharedQueueTooSmall,
                  .object = srq.srqn(),
                  .length = limit,
                  .high = srq.capacity().requests};
  state_->device.set_srq_limit(srq.srqn(), limit, now);
  return {};
}

Result<void, Reason> Engine::post_receive(SharedReceiveQueue& srq, const ReceiveRequest& request,
                                          bool more, Time now) {
  const auto posted = srq.ring_.post_receive(request, published(srq.record_->taken), srq.srqn());
  if (posted && !more) ring_receive_doorbell(srq, now);
  return posted;
}

Result<std::uint32_t, Reason> Engine::post_tags(SharedReceiveQueue& srq, const TagRequest& request,
                                                Time now) {
  if (srq.tags_ == 0) return Reason{.id = ReasonId::SharedQueueKind, .object = srq.srqn()};
  if (request.sges.size() > nic::kMaxSges)
    return Reason{.id = ReasonId::TooManySges,
                  .object = srq.srqn(),
                  .length = request.sges.size(),
                  .high = nic::kMaxSges};
  nic::Device::TagWork work{.kind = static_cast<nic::CqeKind>(request.operation),
                            .cookie = request.wr_id,
                            .signaled = request.signaled,
                            .synchronizes = request.synchronizes,
                            .unexpected_seen = request.unexpected_seen,
                            .entry = {.handle = request.handle,
                                      .cookie = request.receive_wr_id,
                                      .tag = request.tag,
                                      .mask = request.mask,
                                      .segments = {}}};
  for (const Sge& s : request.sges) work.entry.segments.push_back({s.address, s.length, s.lkey});
  const auto handle = state_->device.work_on_tags(srq.srqn(), work, now);
  if (!handle) return Reason{.id = ReasonId::QueueFull, .object = srq.srqn(), .high = srq.tags_};
  return *handle;
}

void Engine::ring_receive_doorbell(SharedReceiveQueue& srq, Time now) {
  if (srq.ring_.take_doorbell())
    state_->device.mmio_write(nic::doorbell_offset(nic::Doorbell::SharedReceive, srq.srqn()),
                              srq.ring_.posted, now);
}

Result<std::uint32_t, Reason> Engine::open_xrcd(const std::optional<FileIdentity>& file,
                                                XrcdOpening how) {
  EngineState& s = *state_;
  if (!s.parts.profile.has(Feature::Xrc)) return s.not_offered("opening an XRC domain");
  const auto known = std::ranges::find_if(
      s.xrcds, [&](const auto& entry) { return file && entry.second.file == file; });
  if (known != s.xrcds.end()) {
    if (how.exclusive) return Reason{.id = ReasonId::XrcDomainExists};
    ++known->second.opened;
    return known->first;
  }
  if (file && !how.create) return Reason{.id = ReasonId::XrcDomainMissing};
  if (file && s.parts.claim_file && !s.parts.claim_file(*file)) {
    // Both have queues of their own; who means those of the other is refused when he names one.
    const Reason reason{.id = ReasonId::XrcDomainElsewhere};
    s.tell("opening an XRC domain", reason);
    if (s.parts.profile.shares_xrc_files) return reason;
  }
  const auto number = s.xrcd_numbers.take();
  if (!number) {
    if (file && s.parts.give_back_file) s.parts.give_back_file(*file);
    return Reason{.id = ReasonId::LimitExceeded, .high = nic::kMaxXrcds};
  }
  s.xrcds.emplace(*number,
                  EngineState::Xrcd{.file = file, .opened = 1, .program = s.parts.space.program()});
  return *number;
}

Result<void, Reason> Engine::close_xrcd(std::uint32_t xrcd) {
  EngineState& s = *state_;
  const auto found = s.xrcds.find(xrcd);
  ASSERT(found != s.xrcds.end());
  if (found->second.opened > 1) {
    --found->second.opened;
    return {};
  }
  const auto uses = [&](const auto& entry) { return entry.second->xrcd() == xrcd; };
  if (std::ranges::any_of(s.qps, uses) || std::ranges::any_of(s.srqs, uses))
    return Reason{.id = ReasonId::ObjectBusy, .object = xrcd};
  if (found->second.file && s.parts.give_back_file) s.parts.give_back_file(*found->second.file);
  s.xrcds.erase(found);
  s.xrcd_numbers.give_back(xrcd);
  return {};
}

}  // namespace softhca::driver
