// TagList: receives that wait for messages with a tag; and the header that carries the tag.
//
// A message that none of them waits for is unexpected: it takes an ordinary receive, and the
// program looks for its own. A tag that is added meanwhile may be for just that message, so it
// counts only when the program has said that it has seen all unexpected ones.
//
// Spec        man ibv_create_srq_ex, ibv_post_srq_ops; <infiniband/tm_types.h>
// Threads     owned by the device
// Invariants  tags are matched in the order in which they were added, each once
#pragma once
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "nic/ring_format.h"

namespace softhca::nic {

enum class TagOperation : std::uint8_t { NoTag = 0, Rendezvous = 1, Finished = 2, Eager = 3 };

// In front of a message; big-endian on the wire.
struct TagHeader {
  static constexpr std::size_t kBytes = 16;
  TagOperation operation{};
  std::uint32_t private_word{};  // the program's own
  std::uint64_t tag{};

  // Nothing if the message is too short or its operation unknown.
  static std::optional<TagHeader> of(ConstBytes message);
  std::vector<std::byte> bytes() const;
};

// Behind it in a rendezvous: where the message lies.
struct RendezvousHeader {
  static constexpr std::size_t kBytes = 16;
  std::uint64_t address{};
  std::uint32_t rkey{};
  std::uint32_t length{};

  static std::optional<RendezvousHeader> of(ConstBytes message);
};

class TagList {
 public:
  explicit TagList(std::uint32_t capacity) : capacity_(capacity) {}

  struct Entry {
    std::uint32_t handle{};
    std::uint64_t cookie{};
    std::uint64_t tag{};
    std::uint64_t mask{};
    std::vector<Segment> segments;
    bool counts{};

    std::uint64_t bytes() const;
  };
  // `unexpected_seen` is how many unexpected messages the program has seen. Gives the handle;
  // nothing if the list is full.
  std::optional<std::uint32_t> add(Entry entry, std::uint32_t unexpected_seen);
  // False if it is not there any more.
  bool remove(std::uint32_t handle);
  // True if the program has seen all: every tag counts from now on.
  bool synchronize(std::uint32_t unexpected_seen);
  // Takes the first that waits for `tag` and has room.
  std::optional<Entry> match(std::uint64_t tag, std::uint64_t bytes_at_least);
  void note_unexpected() { ++unexpected_; }
  bool is_behind(std::uint32_t unexpected_seen) const { return unexpected_seen != unexpected_; }

 private:
  std::uint32_t capacity_;
  std::uint32_t next_handle_ = 1;
  std::uint32_t unexpected_ = 0;  // messages, modulo 2^32
  std::list<Entry> entries_;      // in the order of adding
};

}  // namespace softhca::nic
