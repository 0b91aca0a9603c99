#include "abi/rdmacm/resolver.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>

#include "abi/rdmacm/id.h"
#include "abi/rdmacm/registry.h"
#include "abi/rdmacm/tell.h"
#include "os/interfaces.h"
#include "os/thread.h"

namespace softhca::abi {
namespace {

constexpr Duration kPause = milliseconds(20);

// 0: it is known; EHOSTUNREACH: not yet.
int look(const os::IpAddress& destination, std::uint32_t interface_index) {
  const auto mac = os::mac_on_the_way_to(destination, interface_index, Duration{});
  return mac ? 0 : mac.error().number;
}

}  // namespace

Outcome<void> Resolver::resolve(Id& id, const os::IpAddress& destination,
                                std::uint32_t interface_index, Duration patience) {
  const int now = look(destination, interface_index);
  if (now != 0 && now != EHOSTUNREACH) return Errno{now};
  const std::scoped_lock held(registry_.lock);
  if (now == 0) {
    id.on_resolved(0);
    return {};
  }
  open_.push_back({.number = ++last_number_,
                   .id = &id,
                   .destination = destination,
                   .interface_index = interface_index,
                   .deadline = clock_.now() + patience});
  if (is_running_) return {};
  auto started = os::Thread::start("softhca-resolve", [this] { answer_all(); });
  if (!started) {
    open_.pop_back();
    return Errno{started.error().number};
  }
  started->let_go();  // it ends with the last question
  is_running_ = true;
  return {};
}

void Resolver::forget(const Id& id) {
  std::erase_if(open_, [&](const Question& question) { return question.id == &id; });
}

// Nothing yet while the id has to wait. The question may have been taken back while the kernel was
// asked.
void Resolver::answer(const Question& question) {
  const int now = look(question.destination, question.interface_index);
  const bool waits = now == EHOSTUNREACH && clock_.now() < question.deadline;
  if (waits) return;
  const auto is_same = [&](const Question& one) { return one.number == question.number; };
  bool is_open = false;
  {
    const std::scoped_lock held(registry_.lock);
    is_open = std::ranges::any_of(open_, is_same);
  }
  if (is_open && now != 0)
    tell("rdma_resolve_addr", {.id = trace::ReasonId::NeighbourSilent},
         " On the way to " + os::address_text(question.destination) + ".");
  const std::scoped_lock held(registry_.lock);
  if (std::erase_if(open_, is_same) != 0)
    question.id->on_resolved(now == EHOSTUNREACH ? -ETIMEDOUT : -now);
}

void Resolver::answer_all() {
  for (;; os::pause_for(kPause)) {
    try {
      std::vector<Question> asked;
      {
        const std::scoped_lock held(registry_.lock);
        is_running_ = !open_.empty();
        if (!is_running_) return;
        asked = open_;
      }
      for (const Question& question : asked) answer(question);
    } catch (const std::bad_alloc&) {  // until there is memory
    }
  }
}

}  // namespace softhca::abi
