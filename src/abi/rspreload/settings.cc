#include "abi/rspreload/settings.h"

#include <rdma/rsocket.h>
#include <strings.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/rspreload/originals.h"

namespace softhca::abi {
namespace {

struct Line {
  std::array<char, 64> program{};  // "": any
  int domain{};                    // 0: any, here and below
  int type{};
  int protocol{};
};

struct Word {
  const char* text;
  int value;
};
constexpr Word kDomains[] = {{"*", 0},
                             {"INET", AF_INET},
                             {"AF_INET", AF_INET},
                             {"PF_INET", AF_INET},
                             {"INET6", AF_INET6},
                             {"AF_INET6", AF_INET6},
                             {"PF_INET6", AF_INET6}};
constexpr Word kTypes[] = {{"*", 0},
                           {"STREAM", SOCK_STREAM},
                           {"SOCK_STREAM", SOCK_STREAM},
                           {"DGRAM", SOCK_DGRAM},
                           {"SOCK_DGRAM", SOCK_DGRAM}};
constexpr Word kProtocols[] = {{"*", 0},
                               {"TCP", IPPROTO_TCP},
                               {"IPPROTO_TCP", IPPROTO_TCP},
                               {"UDP", IPPROTO_UDP},
                               {"IPPROTO_UDP", IPPROTO_UDP}};

constexpr std::size_t kLinesAtMost = 64;

template <std::size_t N>
bool read_word(const Word (&words)[N], const char* text, int& value) {
  for (const Word& word : words)
    if (::strcasecmp(word.text, text) == 0) return value = word.value, true;
  return false;
}

struct Settings {
  std::array<Line, kLinesAtMost> lines{};
  std::size_t count = 0;
  int sends = 0;
  int receives = 0;
  int inline_bytes = 0;
  bool forks = false;
};

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

void read_lines(Settings& settings) {
  std::FILE* const file = std::fopen("/etc/rdma/rsocket/preload_config", "re");
  if (file == nullptr) return;
  char text[256], program[64], domain[16], type[16], protocol[16];
  while (settings.count < kLinesAtMost && std::fgets(text, sizeof text, file) != nullptr) {
    Line line;
    if (text[0] == '#' ||
        std::sscanf(text, "%63s %15s %15s %15s", program, domain, type, protocol) != 4 ||
        !read_word(kDomains, domain, line.domain) || !read_word(kTypes, type, line.type) ||
        !read_word(kProtocols, protocol, line.protocol))
      continue;
    if (std::strcmp(program, "*") != 0)
      std::memcpy(line.program.data(), program, line.program.size());
    settings.lines[settings.count++] = line;
  }
  std::fclose(file);
}

Settings read_settings() {
  Settings settings;
  settings.sends = number("RS_SQ_SIZE");
  settings.receives = number("RS_RQ_SIZE");
  settings.inline_bytes = number("RS_INLINE");
  settings.forks = number("RDMAV_FORK_SAFE") != 0;
  read_lines(settings);
  return settings;
}

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

// A line's program is a beginning of the program's name.
bool is_this_program(const Line& line) {
  return ::strncasecmp(line.program.data(), program_invocation_short_name,
                       std::strlen(line.program.data())) == 0;
}

void set_size(int rsocket, int name, int value) {
  if (value != 0) ::rsetsockopt(rsocket, SOL_RDMA, name, &value, sizeof value);
}

}  // namespace

bool is_wanted(int domain, int type, int protocol) {
  if ((domain != AF_INET && domain != AF_INET6) || (type != SOCK_STREAM && type != SOCK_DGRAM))
    return false;
  const Settings& known = settings();
  if (known.count == 0) return true;
  if (protocol == 0) protocol = type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
  for (std::size_t i = 0; i < known.count; ++i) {
    const Line& line = known.lines[i];
    if (is_this_program(line) && (line.domain == 0 || line.domain == domain) &&
        (line.type == 0 || line.type == type) && (line.protocol == 0 || line.protocol == protocol))
      return true;
  }
  return false;
}

bool supports_fork() { return settings().forks; }

void apply_sizes(int rsocket) {
  set_size(rsocket, RDMA_SQSIZE, settings().sends);
  set_size(rsocket, RDMA_RQSIZE, settings().receives);
  set_size(rsocket, RDMA_INLINE, settings().inline_bytes);
}

}  // namespace softhca::abi
