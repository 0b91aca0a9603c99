// Running programs of this machine as procfs shows them, and who holds a UDP port.
//
// Everything here is a look at something that changes: a program may have ended by the time the
// answer is read. What this user may not look at is left out, never an error.
//
// Threads  any
// See also proc(5): /proc/PID/{comm,cmdline,fd,maps,status}, /proc/net/udp
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/owned_fd.h"

namespace softhca::os {

using Pid = std::int32_t;

// Every program of this PID namespace that procfs shows, by number.
std::vector<Pid> running_programs();

// comm: at most 15 characters, as the kernel keeps it. "" if there is no such program.
std::string program_name(Pid pid);
// Arguments as given, "" if it has none (a kernel thread) or is gone.
std::vector<std::string> command_line(Pid pid);
std::optional<std::uint32_t> program_uid(Pid pid);  // effective

// Its threads, by number; none if there is no such program.
std::vector<std::uint32_t> threads_of(Pid pid);

struct OpenFile {
  int fd{};
  std::string target;  // as the link reads: "/etc/passwd", "socket:[123]", "/memfd:x (deleted)"
};
std::vector<OpenFile> open_files(Pid pid);
// Opens one of them read-only; needs nothing of the program, not even that it runs. Nothing if it
// is gone or may not be looked at.
std::optional<OwnedFd> open_file_of(Pid pid, int fd);

// Whether a program is in this process's network namespace.
bool shares_network(Pid pid);

// Whether a program gives the same numbers to processes as this one.
bool shares_pids(Pid pid);

// Files mapped by a program, each once, in the order of their addresses.
std::vector<std::string> mapped_files(Pid pid);

// A UDP socket that is bound to a port in this network namespace.
struct UdpHolder {
  std::string address;  // "0.0.0.0", "192.0.2.1", "::"
  std::uint16_t port{};
  std::uint32_t uid{};
  std::uint64_t inode{};    // 0: a socket of the kernel's own
  std::vector<Pid> owners;  // none: the kernel's own, or of a user that we may not look at
};

// Lines of /proc/net/udp or udp6 whose local port is `port`; owners are not filled in.
std::vector<UdpHolder> parse_udp_table(std::string_view text, std::uint16_t port);

// Every socket bound to the port, with the programs that hold it.
std::vector<UdpHolder> udp_sockets(std::uint16_t port);

}  // namespace softhca::os
