#include "os/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>

#include "os/proc_file.h"

namespace softhca::os {
namespace {

std::string proc_path(Pid pid, std::string_view file) {
  return "/proc/" + std::to_string(pid) + "/" + std::string(file);
}

std::string whole_file(const std::string& path) {
  return read_proc_file(path.c_str()).value_or("");
}

template <class T>
std::optional<T> number(std::string_view text, int number_system = 10) {
  T value{};
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, number_system);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The names in a directory that are numbers, in order; none if it cannot be read.
template <class T>
std::vector<T> numbered_entries(const std::string& directory) {
  std::vector<T> numbers;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (const auto n = number<T>(entry->path().filename().native())) numbers.push_back(*n);
  std::ranges::sort(numbers);
  return numbers;
}

// "0100007F" or 32 digits: words of the address as the kernel prints them, in host order.
std::optional<std::string> address_of_hex(std::string_view hex) {
  if (hex.size() != 8 && hex.size() != 32) return std::nullopt;
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i * 8 < hex.size(); ++i) {
    const auto word = number<std::uint32_t>(hex.substr(i * 8, 8), 16);
    if (!word) return std::nullopt;
    words[i] = *word;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = hex.size() == 8 ? AF_INET : AF_INET6;
  return ::inet_ntop(family, words.data(), text.data(), text.size());
}

std::optional<UdpHolder> parse_udp_line(const std::string& line, std::uint16_t port) {
  std::istringstream columns(line);
  std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
  columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
      inode;
  const auto colon = local.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto local_port = number<std::uint16_t>(std::string_view(local).substr(colon + 1), 16);
  const auto address = address_of_hex(std::string_view(local).substr(0, colon));
  const auto user = number<std::uint32_t>(uid);
  const auto file = number<std::uint64_t>(inode);
  if (local_port != port || !address || !user || !file) return std::nullopt;
  return UdpHolder{.address = *address, .port = port, .uid = *user, .inode = *file, .owners = {}};
}

}  // namespace

std::vector<Pid> running_programs() { return numbered_entries<Pid>("/proc"); }

std::vector<std::uint32_t> threads_of(Pid pid) {
  return numbered_entries<std::uint32_t>(proc_path(pid, "task"));
}

std::string program_name(Pid pid) {
  std::string name = whole_file(proc_path(pid, "comm"));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::vector<std::string> command_line(Pid pid) {
  std::vector<std::string> arguments;
  std::istringstream text(whole_file(proc_path(pid, "cmdline")));
  for (std::string argument; std::getline(text, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::optional<std::uint32_t> program_uid(Pid pid) {
  std::istringstream text(whole_file(proc_path(pid, "status")));
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("Uid:")) continue;
    std::istringstream columns(line.substr(4));
    std::uint32_t real = 0, effective = 0;
    if (columns >> real >> effective) return effective;
  }
  return std::nullopt;
}

std::vector<OpenFile> open_files(Pid pid) {
  std::vector<OpenFile> files;
  const std::string directory = proc_path(pid, "fd");
  for (const int fd : numbered_entries<int>(directory)) {
    std::array<char, 4096> target{};
    const ssize_t size =
        ::readlink((directory + "/" + std::to_string(fd)).c_str(), target.data(), target.size());
    if (size > 0) files.push_back({fd, std::string(target.data(), static_cast<std::size_t>(size))});
  }
  return files;
}

std::optional<OwnedFd> open_file_of(Pid pid, int fd) {
  OwnedFd opened(::open(proc_path(pid, "fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return std::nullopt;
  return opened;
}

namespace {

bool shares_namespace(Pid pid, const std::string& which) {
  std::error_code error;
  return std::filesystem::equivalent("/proc/self/ns/" + which, proc_path(pid, "ns/" + which),
                                     error);
}

}  // namespace

bool shares_network(Pid pid) { return shares_namespace(pid, "net"); }
bool shares_pids(Pid pid) { return shares_namespace(pid, "pid"); }

std::vector<std::string> mapped_files(Pid pid) {
  std::vector<std::string> files;
  std::set<std::string> seen;
  std::istringstream text(whole_file(proc_path(pid, "maps")));
  for (std::string line; std::getline(text, line);) {
    const auto slash = line.find('/');
    if (slash == std::string::npos) continue;
    std::string file = line.substr(slash);
    if (seen.insert(file).second) files.push_back(std::move(file));
  }
  return files;
}

std::vector<UdpHolder> parse_udp_table(std::string_view text, std::uint16_t port) {
  std::vector<UdpHolder> sockets;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);)
    if (auto socket = parse_udp_line(line, port)) sockets.push_back(std::move(*socket));
  return sockets;
}

std::vector<UdpHolder> udp_sockets(std::uint16_t port) {
  std::vector<UdpHolder> sockets = parse_udp_table(whole_file("/proc/net/udp"), port);
  for (UdpHolder& socket : parse_udp_table(whole_file("/proc/net/udp6"), port))
    sockets.push_back(std::move(socket));
  if (sockets.empty()) return sockets;

  for (const Pid pid : running_programs())
    for (const OpenFile& file : open_files(pid))
      for (UdpHolder& socket : sockets)
        if (file.target == "socket:[" + std::to_string(socket.inode) + "]" &&
            (socket.owners.empty() || socket.owners.back() != pid))
          socket.owners.push_back(pid);
  return sockets;
}

}  // namespace softhca::os
