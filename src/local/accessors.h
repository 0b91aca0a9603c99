// Accessors: which processes of this host are in the memory of a device's program right now.
//
// A peer that executes one-sided requests by itself says so in a small table of that device: it
// enters, looks at the device's tables, moves bytes and leaves. An owner that takes a right back
// changes its tables first, and then waits until everybody has left who was in.
//
//   peer    sequence becomes odd     -> reads the tables       -> moves -> sequence becomes even
//   owner   the tables allow no more -> reads every sequence   -> waits for those that are odd
//
// The first steps come before the second ones in an order that all agree on, so at least one sees
// the other. Who died inside, or became another program, is told by the file that it had open.
//
// The lock makes atomics one step among the owner and all peers; its holder is recorded, and one
// that died loses it.
//
// Threads     owner and peers: one thread each at a time
// Invariants  (1) a peer that is inside holds no other lock that the owner waits for
//             (2) after wait_until_left() nobody acts on what the tables said before
// See also    ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/bytes.h"

namespace softhca::local {

// Who enters: a process, by the number and inode of a file that it closes only at its end.
struct AccessorIdentity {
  std::uint32_t pid{};
  int file{};
  std::uint64_t inode{};
};

struct AccessorSlot {
  std::uint32_t state{};     // free, being taken, taken
  std::uint32_t sequence{};  // odd: inside
  std::uint32_t pid{};
  std::uint32_t thread{};  // that entered last
  std::uint32_t file{};
  std::uint32_t reserved{};
  std::uint64_t inode{};
  std::uint64_t unused[4]{};
};
static_assert(sizeof(AccessorSlot) == 64);

inline constexpr std::size_t kAccessorSlots = 1023;

struct AccessorRecord {
  std::uint32_t used{};  // slots from the first that were ever taken
  std::uint32_t lock{};  // of atomics: 0, a slot's index + 1, or the owner's
  std::uint64_t unused[7]{};
  AccessorSlot slots[kAccessorSlots]{};
};
static_assert(sizeof(AccessorRecord) == 65536);

// The owner's side. OWNS nothing.
class Accessors {
 public:
  // REQUIRES: sizeof(AccessorRecord) bytes, zeroed at first.
  explicit Accessors(Bytes memory);

  void wait_until_left();
  void lock();
  void unlock();

 private:
  AccessorRecord* record_;
};

// One peer's side, by which it is inside or not.
class Accessor {
 public:
  // Nothing if all places are taken by living processes.
  static std::optional<Accessor> claim(Bytes memory, const AccessorIdentity& who);
  Accessor(Accessor&& other) noexcept;
  Accessor& operator=(Accessor&&) = delete;
  ~Accessor();  // gives the place back

  // Of the place: no two who live have the same.
  std::uint32_t number() const { return index_; }

  void enter();
  void leave();
  // False if the owner had the lock and lives no more. REQUIRES: inside.
  bool lock(const std::function<bool()>& owner_lives);
  void unlock();

 private:
  Accessor(AccessorRecord& record, std::uint32_t index) : record_(&record), index_(index) {}
  AccessorSlot& slot() const { return record_->slots[index_]; }
  AccessorRecord* record_;  // null after a move
  std::uint32_t index_;
};

}  // namespace softhca::local
