#include "abi/rspreload/places.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "abi/rspreload/originals.h"

namespace softhca::abi {
namespace {

// A descriptor beyond them is not taken over.
constexpr std::size_t kPlaces = 1u << 16;

// Above what is behind it, below the descriptor: a reader never finds half of it.
constinit std::array<std::atomic<std::uint64_t>, kPlaces> g_places{};
constinit std::atomic<std::size_t> g_used{0};  // no place is at or beyond it

std::uint64_t packed(Place place) {
  return std::uint64_t{static_cast<std::uint8_t>(place.behind)} << 32 |
         static_cast<std::uint32_t>(place.fd);
}

}  // namespace

Place place_of(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  if (fd < 0 || at >= kPlaces) return {Behind::Itself, fd};
  const std::uint64_t word = g_places[at].load(std::memory_order_acquire);
  if (word == 0) return {Behind::Itself, fd};
  return {static_cast<Behind>(word >> 32), static_cast<int>(word & 0xffffffff)};
}

void set_place(int fd, Place place) {
  const auto at = static_cast<std::size_t>(fd);
  g_places[at].store(packed(place), std::memory_order_release);
  std::size_t used = g_used.load();
  while (used <= at && !g_used.compare_exchange_weak(used, at + 1)) {
  }
}

int new_place(Place place, bool closes_on_exec) {
  const int fd = ::open("/dev/null", O_RDONLY | (closes_on_exec ? O_CLOEXEC : 0));
  if (fd < 0) return -1;
  if (static_cast<std::size_t>(fd) >= kPlaces) {
    libc().close(fd);
    errno = EMFILE;
    return -1;
  }
  set_place(fd, place);
  return fd;
}

void share_place(int of, int fd) {
  const Place place = place_of(of);
  if (place.behind != Behind::Itself && static_cast<std::size_t>(fd) < kPlaces)
    set_place(fd, place);
}

bool leave_place(int fd, Place place) {
  g_places[static_cast<std::size_t>(fd)].store(0, std::memory_order_release);
  const auto* const begin = g_places.data();
  return std::none_of(begin, begin + g_used.load(),
                      [&](const auto& other) { return other.load() == packed(place); });
}

}  // namespace softhca::abi
