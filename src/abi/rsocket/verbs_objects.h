// What a socket has of verbs, given back with it.
#pragma once
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <span>

#include "abi/errno_of.h"

namespace softhca::abi {

struct EndEventChannel {
  void operator()(rdma_event_channel* channel) const;
};
struct EndId {  // with its queue pair
  void operator()(rdma_cm_id* id) const;
};
struct EndDomain {
  void operator()(ibv_pd* domain) const { ::ibv_dealloc_pd(domain); }
};
using OwnedEventChannel = std::unique_ptr<rdma_event_channel, EndEventChannel>;
using OwnedId = std::unique_ptr<rdma_cm_id, EndId>;
using OwnedDomain = std::unique_ptr<ibv_pd, EndDomain>;

// A completion queue and the channel that tells of it; its descriptor never blocks.
class Completions {
 public:
  Completions() = default;
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  Outcome<void> open(ibv_context* verbs, int entries);

  ibv_cq* queue() const { return queue_; }
  int fd() const { return channel_->fd; }
  // The next completion makes the descriptor readable.
  void arm();
  // What has made it readable is taken away.
  void take_events();

 private:
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  bool is_armed_ = false;
};

// Pages of zeros that a device reaches.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  Outcome<void> open(ibv_pd* domain, std::size_t bytes, unsigned access);

  std::span<std::byte> bytes() const { return bytes_; }
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(bytes_.data()); }
  std::uint32_t lkey() const { return region_->lkey; }
  std::uint32_t rkey() const { return region_->rkey; }

 private:
  std::span<std::byte> bytes_{};
  ibv_mr* region_ = nullptr;
};

}  // namespace softhca::abi
