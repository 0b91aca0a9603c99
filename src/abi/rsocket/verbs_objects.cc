#include "abi/rsocket/verbs_objects.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "abi/rsocket/rdma_calls.h"

namespace softhca::abi {
namespace {

constexpr std::align_val_t kPage{4096};

}  // namespace

void EndEventChannel::operator()(rdma_event_channel* channel) const {
  entry_rdma_destroy_event_channel(channel);
}

void EndId::operator()(rdma_cm_id* id) const {
  if (id->qp != nullptr) entry_rdma_destroy_qp(id);
  entry_rdma_destroy_id(id);
}

Outcome<void> Completions::open(ibv_context* verbs, int entries) {
  channel_ = ::ibv_create_comp_channel(verbs);
  if (channel_ == nullptr) return Errno{errno};
  queue_ = ::ibv_create_cq(verbs, entries, nullptr, channel_, 0);
  if (queue_ == nullptr) return Errno{errno};
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  return {};
}

Completions::~Completions() {
  if (queue_ != nullptr) ::ibv_destroy_cq(queue_);
  if (channel_ != nullptr) ::ibv_destroy_comp_channel(channel_);
}

void Completions::arm() {
  if (!is_armed_) is_armed_ = ::ibv_req_notify_cq(queue_, 0) == 0;
}

void Completions::take_events() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(channel_, &queue, &context) == 0) {
    ::ibv_ack_cq_events(queue, 1);
    is_armed_ = false;
  }
}

Outcome<void> RegisteredMemory::open(ibv_pd* domain, std::size_t bytes, unsigned access) {
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, kPage));
  bytes_ = {memory, bytes};
  std::memset(memory, 0, bytes);
  region_ = ::ibv_reg_mr(domain, memory, bytes, access);
  if (region_ == nullptr) return Errno{errno};
  return {};
}

RegisteredMemory::~RegisteredMemory() {
  if (region_ != nullptr) ::ibv_dereg_mr(region_);
  if (!bytes_.empty()) ::operator delete(bytes_.data(), kPage);
}

}  // namespace softhca::abi
