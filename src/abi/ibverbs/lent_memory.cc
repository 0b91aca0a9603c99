#include "abi/ibverbs/lent_memory.h"

namespace softhca::abi {

Outcome<LentMemory> LentMemory::from(Pd* domain, std::uint64_t bytes, LentFor purpose) {
  LentMemory lent;
  if (domain == nullptr || domain->allocator().alloc == nullptr || bytes == 0) return lent;
  const Pd::Allocator& by = domain->allocator();
  void* const start =
      by.alloc(domain, by.context, bytes, kPage4K, static_cast<std::uint64_t>(purpose));
  if (start == nullptr) return Errno{ENOMEM};
  if (start == IBV_ALLOCATOR_USE_DEFAULT) return lent;
  lent.domain_ = domain;
  lent.bytes_ = {static_cast<std::byte*>(start), bytes};
  lent.purpose_ = purpose;
  if (reinterpret_cast<std::uintptr_t>(start) % kPage4K != 0) return Errno{EINVAL};
  return lent;
}

LentMemory::~LentMemory() {
  if (domain_ == nullptr) return;
  const Pd::Allocator& by = domain_->allocator();
  by.free(domain_, by.context, bytes_.data(), static_cast<std::uint64_t>(purpose_));
}

}  // namespace softhca::abi
