#include "local/accessors.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/assert.h"
#include "os/peer_memory.h"
#include "os/self.h"
#include "os/thread.h"

namespace softhca::local {

namespace {

constexpr std::uint32_t kFree = 0, kBeingTaken = 1, kTaken = 2;
constexpr std::uint32_t kUnlocked = 0, kOwner = UINT32_MAX;

std::atomic_ref<std::uint32_t> word(std::uint32_t& cell) { return std::atomic_ref(cell); }

bool is_inside(std::uint32_t sequence) { return sequence % 2 != 0; }

// Of one that is inside.
bool is_alive(AccessorSlot& slot) {
  return os::has_file(word(slot.pid).load(), word(slot.thread).load(),
                      static_cast<int>(word(slot.file).load()), std::atomic_ref(slot.inode).load());
}

// Outside, the thread that was inside last may have ended, and the process goes on.
bool has_process(AccessorSlot& slot) {
  return os::has_file(word(slot.pid).load(), static_cast<int>(word(slot.file).load()),
                      std::atomic_ref(slot.inode).load());
}

// A move takes some microseconds, or as long as its thread is off its CPU.
class Patience {
 public:
  // True when it has been long: time to look whether the other one lives.
  bool wait() {
    if (++turns_ < kSpins) return false;
    os::pause_for(kPause);
    return true;
  }

 private:
  static constexpr int kSpins = 2000;
  static constexpr Duration kPause = microseconds(20);
  int turns_ = 0;
};

// A place whose process has ended inside, or with the lock.
void clear(AccessorRecord& record, AccessorSlot& slot) {
  std::uint32_t holder = static_cast<std::uint32_t>(&slot - record.slots) + 1;
  word(record.lock).compare_exchange_strong(holder, kUnlocked);
  const std::uint32_t sequence = word(slot.sequence).load();
  word(slot.sequence).store(sequence + sequence % 2);
}

void wait_for(AccessorSlot& slot) {
  std::uint32_t seen = word(slot.sequence).load();
  if (!is_inside(seen)) return;
  for (Patience patience; word(slot.sequence).load() == seen;)
    if (patience.wait() && !is_alive(slot)) {
      word(slot.sequence).compare_exchange_strong(seen, seen + 1);
      return;
    }
}

bool take(AccessorSlot& slot, std::uint32_t from) {
  return word(slot.state).compare_exchange_strong(from, kBeingTaken);
}

// Somebody else may take it between the look and ours: then it is his.
bool take_from_dead(AccessorSlot& slot) {
  if (word(slot.state).load() != kTaken || has_process(slot) || !take(slot, kTaken)) return false;
  if (!has_process(slot)) return true;
  std::uint32_t ours = kBeingTaken;
  word(slot.state).compare_exchange_strong(ours, kTaken);  // he may have given it back meanwhile
  return false;
}

}  // namespace

Accessors::Accessors(Bytes memory) : record_(reinterpret_cast<AccessorRecord*>(memory.data())) {
  ASSERT(memory.size() >= sizeof(AccessorRecord));
}

void Accessors::wait_until_left() {
  const std::uint32_t used = word(record_->used).load();
  for (std::uint32_t i = 0; i < used && i < kAccessorSlots; ++i) wait_for(record_->slots[i]);
}

void Accessors::lock() {
  std::uint32_t holder = kUnlocked;
  for (Patience patience; !word(record_->lock).compare_exchange_strong(holder, kOwner);) {
    if (patience.wait() && holder - 1 < kAccessorSlots && !is_alive(record_->slots[holder - 1]))
      clear(*record_, record_->slots[holder - 1]);
    holder = kUnlocked;
  }
}

void Accessors::unlock() { word(record_->lock).store(kUnlocked); }

std::optional<Accessor> Accessor::claim(Bytes memory, const AccessorIdentity& who) {
  if (memory.size() < sizeof(AccessorRecord)) return std::nullopt;
  AccessorRecord& record = *reinterpret_cast<AccessorRecord*>(memory.data());
  // One that was used before comes first: what belongs to it has its pages already.
  const std::uint32_t used_before =
      std::min(word(record.used).load(), std::uint32_t{kAccessorSlots});
  std::uint32_t index = 0;
  while (index < used_before && !take(record.slots[index], kFree)) ++index;
  if (index == used_before)
    for (index = 0; index < used_before && !take_from_dead(record.slots[index]);) ++index;
  if (index < used_before)
    clear(record, record.slots[index]);
  else
    while (index < kAccessorSlots && !take(record.slots[index], kFree)) ++index;
  if (index == kAccessorSlots) return std::nullopt;
  AccessorSlot& slot = record.slots[index];
  word(slot.pid).store(who.pid);
  word(slot.thread).store(who.pid);
  word(slot.file).store(static_cast<std::uint32_t>(who.file));
  std::atomic_ref(slot.inode).store(who.inode);
  std::uint32_t used = word(record.used).load();
  while (used < index + 1 && !word(record.used).compare_exchange_strong(used, index + 1)) {
  }
  word(slot.state).store(kTaken);
  return Accessor(record, index);
}

Accessor::Accessor(Accessor&& other) noexcept
    : record_(std::exchange(other.record_, nullptr)), index_(other.index_) {}

Accessor::~Accessor() {
  if (record_ != nullptr) word(slot().state).store(kFree);
}

void Accessor::enter() {
  word(slot().thread).store(os::own_thread(), std::memory_order_relaxed);
  word(slot().sequence).fetch_add(1);
}

// Nobody else writes to it while this process lives, so it is a plain store: a locked one would
// wait until the bytes that were just moved have left for the processor that watches them.
void Accessor::leave() {
  const auto sequence = word(slot().sequence);
  sequence.store(sequence.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool Accessor::lock(const std::function<bool()>& owner_lives) {
  std::uint32_t holder = kUnlocked;
  for (Patience patience; !word(record_->lock).compare_exchange_strong(holder, index_ + 1);) {
    const bool is_long = patience.wait();
    if (is_long && holder == kOwner && !owner_lives()) return false;
    if (is_long && holder - 1 < kAccessorSlots && !is_alive(record_->slots[holder - 1]))
      clear(*record_, record_->slots[holder - 1]);
    holder = kUnlocked;
  }
  return true;
}

void Accessor::unlock() { word(record_->lock).store(kUnlocked, std::memory_order_release); }

}  // namespace softhca::local
