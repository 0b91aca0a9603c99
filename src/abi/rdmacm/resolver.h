// Resolver: waits until the kernel knows the way to a neighbour, so that rdma_resolve_addr need
// not.
//
// A thread of its own does: a descriptor that the program polls can only be readable for what has
// happened. It starts with the first neighbour that is not known yet, and ends with the last.
//
// Threads  its lists are under the registry's lock
#pragma once
#include <cstdint>
#include <vector>

#include "abi/errno_of.h"
#include "os/clock.h"
#include "os/ip_address.h"

namespace softhca::abi {

struct Id;
struct Registry;

class Resolver {
 public:
  explicit Resolver(Registry& registry) : registry_(registry) {}

  // The id is told that the neighbour on the way is known, or that nobody has answered within
  // `patience`. FAILS WITH what route there is not, or EAGAIN: no thread can be started
  Outcome<void> resolve(Id& id, const os::IpAddress& destination, std::uint32_t interface_index,
                        Duration patience);
  // The id is not told any more. REQUIRES: the registry's lock
  void forget(const Id& id);

 private:
  struct Question {
    std::uint64_t number{};
    Id* id{};
    os::IpAddress destination{};
    std::uint32_t interface_index{};
    Time deadline{};
  };
  void answer(const Question& question);
  void answer_all();

  Registry& registry_;
  os::Clock clock_;
  std::vector<Question> open_;
  std::uint64_t last_number_ = 0;
  bool is_running_ = false;
};

}  // namespace softhca::abi
