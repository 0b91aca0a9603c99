// SharedReceiveQueue: receives that several queue pairs take from; and the list of them.
//
// A basic one is named by the queue pairs that were created with it, and what they take completes
// on their own completion queues. One of an XRC domain is named by each request that arrives, takes
// completions on a queue of its own, and lends its protection domain to that request. One that has
// a list of tags is a basic one with a completion queue of its own.
//
// A slot is free for the driver as soon as the request is fetched, which the record tells.
//
// Spec        IBTA vol. 1, 10.2.9 and 11.2.3 (shared receive queues, limit), annex A14 (XRC)
// Threads     owned by the device
// Invariants  a limit that was armed is told of once
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/free_list.h"
#include "nic/receive_queue.h"
#include "nic/records.h"
#include "nic/tag_list.h"

namespace softhca::nic {

struct SrqContext {
  std::uint32_t srqn{};
  std::uint32_t pd{};
  std::uint32_t xrcd{};  // 0: basic
  std::uint32_t cqn{};   // XRC and tags: where its receives complete; basic: 0
  std::uint32_t tags{};  // how many its list holds; 0: it has none
  QueuePlace ring;
};

class SharedReceiveQueue {
 public:
  // What the device has to tell: the limit was reached, or the queue failed.
  struct News {
    std::uint32_t srqn{};
    trace::Reason failure{};
  };

  // OWNS nothing. `news` gets what is to be told.
  SharedReceiveQueue(const SrqContext& context, HostMemory& memory, trace::Tracer& tracer,
                     SrqRecord& record, std::vector<News>& news);

  // As ReceiveQueue's. Nothing from a queue that has failed, as from an empty one.
  std::optional<transport::ReceiveSlot> take(FetchedReceive& into, wire::Qpn taker, Time now);
  void on_doorbell(std::uint32_t producer) { receives_.on_doorbell(producer); }

  // Told of once as soon as fewer than `limit` are waiting; 0: never.
  void set_limit(std::uint32_t limit);
  // Goes on in another ring, in which the driver has put what is waiting, at its indices.
  void move_to(const QueuePlace& ring) { receives_.move_to(ring); }
  void fail(const trace::Reason& why);

  const SrqContext& context() const { return context_; }
  TagList* tags() { return tags_ ? &*tags_ : nullptr; }  // null: it does not match
  bool failed() const { return failed_; }

 private:
  void check_limit();

  SrqContext context_;
  ReceiveQueue receives_;
  std::optional<TagList> tags_;
  SrqRecord& record_;
  std::vector<News>& news_;
  std::uint32_t limit_ = 0;
  bool failed_ = false;
};

class SharedReceiveQueues {
 public:
  // OWNS nothing. Numbers first .. first + records.size() - 1, the first one `start` places in.
  // Those of the processes of a host differ, so that none takes a message for a queue of another's.
  SharedReceiveQueues(std::span<SrqRecord> records, std::uint32_t first, std::uint32_t start,
                      HostMemory& memory, trace::Tracer& tracer)
      : records_(records),
        first_(first),
        numbers_(first, static_cast<std::uint32_t>(records.size()), start),
        memory_(memory),
        tracer_(tracer),
        queues_(records.size()) {}

  // Nothing when all numbers are out.
  std::optional<std::uint32_t> take_number() { return numbers_.take(); }
  SrqRecord& record(std::uint32_t srqn) { return records_[srqn - first_]; }
  void create(const SrqContext& context);
  void destroy(std::uint32_t srqn);
  // Null if there is none of this number.
  SharedReceiveQueue* find(std::uint32_t srqn) {
    const std::uint32_t index = srqn - first_;
    return index < queues_.size() ? queues_[index].get() : nullptr;
  }
  void fail_those_of_cq(std::uint32_t cqn, const trace::Reason& why);

  bool has_news() const { return !news_.empty(); }
  std::vector<SharedReceiveQueue::News> take_news() { return std::exchange(news_, {}); }

 private:
  std::span<SrqRecord> records_;
  std::uint32_t first_;
  FreeList numbers_;
  HostMemory& memory_;
  trace::Tracer& tracer_;
  std::vector<std::unique_ptr<SharedReceiveQueue>> queues_;  // by number - first_
  std::vector<SharedReceiveQueue::News> news_;
};

}  // namespace softhca::nic
