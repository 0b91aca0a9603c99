// HostMailbox: messages between processes of this host, to whoever holds a name.
//
// A named, listening socket; a sender connects once and keeps the connection. Not datagrams to a
// name: Linux lets only ten of those wait, which is less than one burst of packets. Here as much
// may wait as the sender's buffer holds, for each sender. Nobody has to accept anything for a
// message to be on its way, and a message outlives its sender.
//
// Threads  owned by one
// See also os/host_name.h
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "os/datagram_arena.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class HostMailbox {
 public:
  // Takes the name. FAILS WITH EADDRINUSE if it is taken.
  static Result<HostMailbox, SystemError> open(std::string_view name);

  enum class Sent : std::uint8_t { Yes, Full, Nobody };
  // Sends `head` and `body` as one message. REQUIRES: they are not both empty.
  Sent send(const std::string& name, ConstBytes head, ConstBytes body);

  // Whether the name is that of a process of this user.
  bool is_of_this_user(const std::string& name);

  // Says whether a user may send here. Asked once for each sender, when it connects.
  using Admission = std::function<bool(std::uint32_t uid)>;
  static bool admit_this_user(std::uint32_t uid);

  // Fills slots first, first + 1, ..., `most` at most, and says how many. Each has the sender's
  // uid. Senders of users that are not admitted are turned away.
  std::size_t receive(DatagramArena& arena, std::size_t first, std::size_t most,
                      const Admission& admits = admit_this_user);

  // Gives the name up and drops what waits.
  void close();

  // Readable when there may be a message.
  int fd() const { return ready_.get(); }

 private:
  struct Outgoing {
    std::string name;
    OwnedFd fd;
  };
  HostMailbox(OwnedFd listener, OwnedFd ready);
  Outgoing* connect(const std::string& name);
  bool accept_senders(const Admission& admits);
  std::size_t receive_from(int fd, DatagramArena& arena, std::size_t first, std::size_t most);
  void drop_sender(int fd);

  OwnedFd listener_;
  OwnedFd ready_;                  // epoll: the listener and every sender
  std::vector<OwnedFd> senders_;   // who has connected to us
  std::deque<Outgoing> outgoing_;  // to whom we have connected, oldest first
};

}  // namespace softhca::os
