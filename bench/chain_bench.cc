// Each step of the chain beside what one would take instead, in one run.
//
//   registration   Engine::register_memory + deregister   against   mlock + munlock
//   the mover      os::GuardedCopy                         against   memcpy
//   the ICRC       wire::icrc                              against   memcpy of the same bytes
//
// Runs on the loopback device; needs no other process.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "driver/live/live_device.h"
#include "os/guarded_copy.h"
#include "wire/icrc.h"

namespace softhca {
namespace {

// Touched memory, not huge pages.
struct Touched {
  explicit Touched(std::size_t n)
      : bytes(n),
        start(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    madvise(start, bytes, MADV_NOHUGEPAGE);
    std::memset(start, 1, bytes);
  }
  ~Touched() { munmap(start, bytes); }
  std::size_t bytes;
  void* start;
};

void Register(benchmark::State& state) {
  setenv("SOFTHCA_NETDEV", "lo", 1);
  const auto devices = driver::list_devices();
  if (devices.empty()) return state.SkipWithError("no device");
  auto device = driver::LiveDevice::open(devices.front());
  if (!device) return state.SkipWithError("the device does not open");
  const Touched memory(static_cast<std::size_t>(state.range(0)));
  const VirtAddr at{reinterpret_cast<std::uint64_t>(memory.start)};
  const auto pd = (*device)->run([](driver::Engine& e, Time) { return *e.alloc_pd(); });
  for (auto _ : state) {
    (*device)->run([&](driver::Engine& e, Time now) {
      const auto region =
          e.register_memory(pd, at, memory.bytes, {at.value}, driver::Access::LocalWrite, now);
      if (!region || !e.deregister_memory(region->key, now))
        state.SkipWithError("registration failed");
    });
  }
  (*device)->run([&](driver::Engine& e, Time) { return static_cast<bool>(e.dealloc_pd(pd)); });
}
void RegisterMlock(benchmark::State& state) {
  const Touched memory(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    if (mlock(memory.start, memory.bytes) != 0) return state.SkipWithError("mlock: memlock limit");
    munlock(memory.start, memory.bytes);
  }
}

void Copy(benchmark::State& state) {
  const auto copy = os::GuardedCopy::open();
  if (!copy) return state.SkipWithError("no guarded copy");
  const auto n = static_cast<std::size_t>(state.range(0));
  const Touched memory(1 << 20);
  std::vector<std::byte> buffer(n);
  const os::MemoryPiece piece{reinterpret_cast<std::uintptr_t>(memory.start), n};
  for (auto _ : state) benchmark::DoNotOptimize(copy->to_memory({&piece, 1}, buffer));
}
void CopyMemcpy(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const Touched memory(1 << 20);
  std::vector<std::byte> buffer(n);
  for (auto _ : state) {
    std::memcpy(memory.start, buffer.data(), n);
    benchmark::ClobberMemory();
  }
}

void Icrc(benchmark::State& state) {
  std::vector<std::byte> packet(static_cast<std::size_t>(state.range(0)) + wire::kBthBytes);
  wire::Datagram datagram;
  datagram.source = wire::Gid::of_ipv4({127, 0, 0, 1});
  datagram.destination = datagram.source;
  for (auto _ : state) benchmark::DoNotOptimize(wire::icrc(datagram, packet));
}
void IcrcMemcpy(benchmark::State& state) { CopyMemcpy(state); }

BENCHMARK(Register)->Arg(1 << 20)->Arg(64 << 20)->Arg(1 << 30)->Unit(benchmark::kMicrosecond);
BENCHMARK(RegisterMlock)->Arg(1 << 20)->Arg(64 << 20)->Arg(1 << 30)->Unit(benchmark::kMicrosecond);
BENCHMARK(Copy)->Arg(8)->Arg(4096)->Arg(65536);
BENCHMARK(CopyMemcpy)->Arg(8)->Arg(4096)->Arg(65536);
BENCHMARK(Icrc)->Arg(64)->Arg(4096);
BENCHMARK(IcrcMemcpy)->Arg(64)->Arg(4096);

}  // namespace
}  // namespace softhca

BENCHMARK_MAIN();
