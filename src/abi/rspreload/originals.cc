#include "abi/rspreload/originals.h"

#include <dlfcn.h>

#include <atomic>

namespace softhca::abi {
namespace {

// One hook does for fstat and fstat64, sendfile and sendfile64.
static_assert(sizeof(off_t) == 8 && sizeof(struct stat) == sizeof(struct stat64));

constinit SocketOriginals g_libc{};
constinit std::atomic<bool> g_known{false};

template <class Function>
void look_up(Function*& to, const char* name) {
  to = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Two threads that come here at once store the same.
[[gnu::constructor]] void look_all_up() {
  SocketOriginals& o = g_libc;
  look_up(o.socket, "socket");
  look_up(o.bind, "bind");
  look_up(o.listen, "listen");
  look_up(o.accept, "accept");
  look_up(o.accept4, "accept4");
  look_up(o.connect, "connect");
  look_up(o.shutdown, "shutdown");
  look_up(o.close, "close");
  look_up(o.dup, "dup");
  look_up(o.dup2, "dup2");
  look_up(o.dup3, "dup3");
  look_up(o.fcntl, "fcntl");
  look_up(o.ioctl, "ioctl");
  look_up(o.getpeername, "getpeername");
  look_up(o.getsockname, "getsockname");
  look_up(o.setsockopt, "setsockopt");
  look_up(o.getsockopt, "getsockopt");
  look_up(o.recv, "recv");
  look_up(o.recvfrom, "recvfrom");
  look_up(o.recvmsg, "recvmsg");
  look_up(o.read, "read");
  look_up(o.readv, "readv");
  look_up(o.send, "send");
  look_up(o.sendto, "sendto");
  look_up(o.sendmsg, "sendmsg");
  look_up(o.write, "write");
  look_up(o.writev, "writev");
  look_up(o.sendfile, "sendfile");
  look_up(o.poll, "poll");
  look_up(o.ppoll, "ppoll");
  look_up(o.select, "select");
  look_up(o.pselect, "pselect");
  look_up(o.fstat, "fstat");
  g_known.store(true, std::memory_order_release);
}

}  // namespace

const SocketOriginals& libc() {
  if (!g_known.load(std::memory_order_acquire)) look_all_up();
  return g_libc;
}

}  // namespace softhca::abi
