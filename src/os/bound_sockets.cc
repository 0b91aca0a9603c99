#include "os/bound_sockets.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "os/proc_file.h"

namespace softhca::os {

namespace {

// As the kernel prints it: 32-bit words in the byte order of this machine, then the port.
std::string kernel_text(const IpAddress& address, std::uint16_t port) {
  std::string text;
  char word[16];
  for (std::size_t at = address.is_ipv4() ? 12 : 0; at < 16; at += 4) {
    std::uint32_t value;
    std::memcpy(&value, address.bytes.data() + at, 4);
    std::snprintf(word, sizeof word, "%08" PRIX32, value);
    text += word;
  }
  std::snprintf(word, sizeof word, ":%04X", unsigned{port});
  return text + word;
}

// "  sl: local remote st tx:rx tr:when retransmits uid timeout inode ..."
std::optional<BoundSocket> parse_line(const char* line, const std::string& local) {
  char address[64];
  unsigned uid = 0;
  std::uint64_t inode = 0;
  const int fields = std::sscanf(line, " %*d: %63s %*s %*x %*x:%*x %*x:%*x %*x %u %*d %" SCNu64,
                                 address, &uid, &inode);
  if (fields != 3 || local != address) return std::nullopt;
  return BoundSocket{inode, uid};
}

std::vector<BoundSocket> parse(const std::string& listing, const std::string& local) {
  std::vector<BoundSocket> found;
  for (std::size_t at = 0; at < listing.size();) {
    const std::size_t end = std::min(listing.find('\n', at), listing.size());
    const std::string line = listing.substr(at, end - at);
    if (const auto socket = parse_line(line.c_str(), local)) found.push_back(*socket);
    at = end + 1;
  }
  return found;
}

// The kernel lists page by page, and finds its place again by counting: a socket that is closed
// between two pages makes it skip another one.
constexpr std::size_t kOnePage = 4000;
constexpr int kAttempts = 8;

}  // namespace

std::optional<std::vector<BoundSocket>> bound_udp_sockets(const IpAddress& address,
                                                          std::uint16_t port) {
  const char* const path =
      address.is_ipv4() ? "/proc/thread-self/net/udp" : "/proc/thread-self/net/udp6";
  const std::string local = kernel_text(address, port);
  std::optional<std::vector<BoundSocket>> before;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::optional<std::string> listing = read_proc_file(path);
    if (!listing) return std::nullopt;
    std::vector<BoundSocket> found = parse(*listing, local);
    if (listing->size() <= kOnePage || before == found) return found;
    before = std::move(found);
  }
  return std::nullopt;
}

PortRange ephemeral_ports() {
  constexpr PortRange kUsual{32768, 60999};
  const auto text = read_proc_file("/proc/sys/net/ipv4/ip_local_port_range");
  PortRange range;
  if (!text || std::sscanf(text->c_str(), "%" SCNu16 " %" SCNu16, &range.first, &range.last) != 2 ||
      range.first == 0 || range.last < range.first)
    return kUsual;
  return range;
}

}  // namespace softhca::os
