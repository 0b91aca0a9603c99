// What one would take instead of the device between processes of one host: the kernel's calls by
// which a process reaches another one's memory, or memory that both have mapped.
//
//   raw_memory write BYTES          one-way latency: each writes into the other's memory and
//                                   watches its own; median, us
//   raw_memory read BYTES           one call of process_vm_readv; the target sleeps; us
//   raw_memory atomic BYTES         a read and a write, the target sleeps; us
//   raw_memory write-stream BYTES   one way, a call for each; the target sleeps; GB/s
//   raw_memory read-stream BYTES    likewise
//   raw_memory ring BYTES           one-way latency through shared memory: a copy in, a word that
//                                   the other one watches, a copy out; median, us
//   raw_memory ring-stream BYTES    one way through a ring of 64 pieces of 4 KiB: copies in and
//                                   out; GB/s
//   raw_memory write-list BYTES     64 pieces to one place for each call; millions of pieces a
//   second
//   raw_memory stores BYTES         as write, by memcpy into shared memory
//   raw_memory adds BYTES           an atomic add there, the target sleeps; us
//   raw_memory copies BYTES         as write-stream, by memcpy into shared memory; GB/s
//
// Prints the number alone.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr int kStretches = 3000;
constexpr int kPerStretch = 10;  // short: who is taken off the CPU spoils few
constexpr std::size_t kList = 64;

using Clock = std::chrono::steady_clock;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  _exit(1);
}

void write_to(pid_t pid, void* there, const void* here, std::size_t bytes) {
  const iovec local{const_cast<void*>(here), bytes};
  const iovec remote{there, bytes};
  if (process_vm_writev(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    give_up("process_vm_writev");
}

void read_from(pid_t pid, void* here, void* there, std::size_t bytes) {
  const iovec local{here, bytes};
  const iovec remote{there, bytes};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    give_up("process_vm_readv");
}

void write_list(pid_t pid, void* there, void* here, std::size_t bytes) {
  std::array<iovec, kList> local;
  std::array<iovec, kList> remote;
  local.fill({here, bytes});
  remote.fill({there, bytes});
  if (process_vm_writev(pid, local.data(), kList, remote.data(), kList, 0) < 0)
    give_up("process_vm_writev");
}

double seconds_of(int count, const std::function<void()>& call) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) call();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Microseconds of a call: of the median of many stretches of them.
double median_of(const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int stretch = 0; stretch < kStretches; ++stretch)
    seconds.push_back(seconds_of(kPerStretch, call));
  std::ranges::nth_element(seconds, seconds.begin() + kStretches / 2);
  return seconds[kStretches / 2] / kPerStretch * 1e6;
}

// One end of the ping-pong: what is written here has the number of the turn in its last byte.
double ping_pong(const std::function<void()>& send, unsigned char* in, unsigned char* out,
                 std::size_t bytes, bool first) {
  unsigned char turn = 0;
  const volatile unsigned char* const arrived = in + bytes - 1;
  return median_of([&] {
           turn = static_cast<unsigned char>(turn % 100 + 1);
           out[bytes - 1] = turn;
           if (first) send();
           while (*arrived != turn) {
           }
           if (!first) send();
         }) /
         2;
}

// What two processes have in common: places of a page, and how many were ever filled and emptied.
struct Cells {
  static constexpr std::uint64_t kPlaces = 64;
  static constexpr std::size_t kPlaceBytes = 4096;
  alignas(64) std::atomic<std::uint64_t> filled;
  alignas(64) std::atomic<std::uint64_t> emptied;
  unsigned char places[kPlaces][kPlaceBytes];

  void put(const unsigned char* from, std::size_t bytes) {
    const std::uint64_t place = filled.load(std::memory_order_relaxed);
    while (place - emptied.load(std::memory_order_acquire) == kPlaces) {
    }
    std::memcpy(places[place % kPlaces], from, bytes);
    filled.store(place + 1, std::memory_order_release);
  }
  void take(unsigned char* to, std::size_t bytes) {
    const std::uint64_t place = emptied.load(std::memory_order_relaxed);
    while (filled.load(std::memory_order_acquire) == place) {
    }
    std::memcpy(to, places[place % kPlaces], bytes);
    emptied.store(place + 1, std::memory_order_release);
  }
};

double ring_ping_pong(Cells& out, Cells& in, unsigned char* bytes, std::size_t count, bool first) {
  return median_of([&] {
           if (first) out.put(bytes, count);
           in.take(bytes, count);
           if (!first) out.put(bytes, count);
         }) /
         2;
}

// All that passes in kStreamed messages, piece by piece.
constexpr int kStreamed = 1000;
void stream(std::size_t bytes, unsigned char* memory,
            const std::function<void(unsigned char*, std::size_t)>& move) {
  for (int i = 0; i < kStreamed; ++i)
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t piece = std::min(bytes - done, Cells::kPlaceBytes);
      move(memory + done, piece);
      done += piece;
    }
}

// Both ends of what goes through shared memory; the child never returns.
double through_cells(const std::string& mode, unsigned char* memory, std::size_t bytes) {
  const bool is_stream = mode == "ring-stream";
  if (!is_stream && bytes > Cells::kPlaceBytes) _exit(2);
  void* const shared = mmap(nullptr, 2 * sizeof(Cells), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (shared == MAP_FAILED) give_up("mmap");
  auto* const cells = static_cast<Cells*>(shared);
  const pid_t other = fork();
  if (other < 0) give_up("fork");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_stream)
      stream(bytes, memory, [&](unsigned char* at, std::size_t n) { cells[0].take(at, n); });
    else
      ring_ping_pong(cells[1], cells[0], memory, bytes, false);
    _exit(0);
  }
  double result = 0;
  if (is_stream) {
    const double seconds = seconds_of(1, [&] {
      stream(bytes, memory, [&](unsigned char* at, std::size_t n) { cells[0].put(at, n); });
    });
    result = static_cast<double>(bytes) * kStreamed / seconds / 1e9;
  } else {
    result = ring_ping_pong(cells[0], cells[1], memory, bytes, true);
  }
  waitpid(other, nullptr, 0);
  return result;
}

// One end of it, in private memory that each has at the same address, or by shared memory.
double ping_pong(const std::string& mode, pid_t other, unsigned char* memory, unsigned char* shared,
                 std::size_t bytes, bool first) {
  unsigned char* const in = memory;
  unsigned char* const out = memory + bytes;
  if (mode == "write")
    return ping_pong([=] { write_to(other, in, out, bytes); }, in, out, bytes, first);
  unsigned char* const there = shared + (first ? 0 : bytes);
  unsigned char* const here = shared + (first ? bytes : 0);
  return ping_pong([=] { std::memcpy(there, out, bytes); }, here, out, bytes, first);
}

double measure(const std::string& mode, pid_t target, unsigned char* there, unsigned char* here,
               unsigned char* shared, std::size_t bytes) {
  constexpr int kCalls = 5000;
  const double total = static_cast<double>(bytes) * kCalls;
  if (mode == "copies")
    return total / seconds_of(kCalls, [&] { std::memcpy(shared, here, bytes); }) / 1e9;
  if (mode == "adds")
    return median_of(
        [&] { __atomic_fetch_add(reinterpret_cast<std::uint64_t*>(shared), 1, __ATOMIC_SEQ_CST); });
  if (mode == "read") return median_of([&] { read_from(target, here, there, bytes); });
  if (mode == "atomic")
    return median_of([&] {
      read_from(target, here, there, bytes);
      write_to(target, there, here, bytes);
    });
  if (mode == "write-stream")
    return total / seconds_of(kCalls, [&] { write_to(target, there, here, bytes); }) / 1e9;
  if (mode == "read-stream")
    return total / seconds_of(kCalls, [&] { read_from(target, here, there, bytes); }) / 1e9;
  if (mode == "write-list")
    return static_cast<double>(kList) * kCalls /
           seconds_of(kCalls, [&] { write_list(target, there, here, bytes); }) / 1e6;
  std::fprintf(stderr, "raw_memory: no mode '%s'; see the head of bench/raw_memory.cc\n",
               mode.c_str());
  _exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const long wanted = argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  if (wanted <= 0 || wanted > 1 << 30) {
    std::fprintf(stderr, "usage: raw_memory MODE BYTES; see the head of bench/raw_memory.cc\n");
    return 2;
  }
  const std::string mode = argv[1];
  const auto bytes = static_cast<std::size_t>(wanted);
  // Private memory: after the fork each has its own at the same address.
  auto* const memory =
      static_cast<unsigned char*>(mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  void* const both = mmap(nullptr, 4096 + 2 * bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED || both == MAP_FAILED) give_up("mmap");
  if (mode.starts_with("ring")) {
    std::memset(memory, 0, 2 * bytes);
    alarm(60);
    std::printf("%.3f\n", through_cells(mode, memory, bytes));
    return 0;
  }
  auto& ready = *new (both) std::atomic<bool>(false);
  unsigned char* const shared = static_cast<unsigned char*>(both) + 4096;
  const bool is_ping_pong = mode == "write" || mode == "stores";
  const pid_t self = getpid();
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  alarm(60);
  const pid_t other = fork();
  if (other < 0) give_up("fork");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::memset(memory, 0, 2 * bytes);
    ready = true;
    if (is_ping_pong) ping_pong(mode, self, memory, shared, bytes, false);
    if (is_ping_pong) _exit(0);
    for (;;) pause();
  }
  while (!ready) {
  }
  std::memset(memory, 0, 2 * bytes);
  const double result = is_ping_pong ? ping_pong(mode, other, memory, shared, bytes, true)
                                     : measure(mode, other, memory, memory + bytes, shared, bytes);
  if (!is_ping_pong) kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  std::printf("%.3f\n", result);
}
