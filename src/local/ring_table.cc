#include "local/ring_table.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/assert.h"
#include "base/prefetch.h"

namespace softhca::local {

namespace {

constexpr std::uint32_t kBitsInWord = 64;
constexpr std::uint32_t kWords = kRings / kBitsInWord;
constexpr std::uint32_t kSleeps = 1, kAwake = 0;

RingTableHead& head_of(Bytes memory) {
  ASSERT(memory.size() >= kRingTableBytes);
  return *reinterpret_cast<RingTableHead*>(memory.data());
}

std::atomic_ref<std::uint64_t> bits(RingTableHead& head, std::uint32_t number) {
  return std::atomic_ref(head.rung[number / kBitsInWord]);
}

std::uint64_t bit_of(std::uint32_t number) { return std::uint64_t{1} << number % kBitsInWord; }

Bytes ring_at(Bytes memory, std::uint32_t number) {
  return memory.subspan(kRingsAt + number * kRingBytes, kRingBytes);
}

}  // namespace

RingTable::RingTable(Bytes memory) : head_(&head_of(memory)), memory_(memory), readers_(kRings) {}

void RingTable::release() {
  for (const std::uint32_t number : read_) readers_[number]->release();
  read_.clear();
}

std::size_t RingTable::receive(std::span<RingFrame> out) {
  release();
  std::size_t count = 0;
  // The word with the first one comes once more at the end, for what is in front of that.
  const std::uint64_t from_first = ~std::uint64_t{0} << first_ % kBitsInWord;
  const std::uint32_t start = first_ / kBitsInWord;
  for (std::uint32_t i = 0; i <= kWords && count < out.size(); ++i) {
    const std::uint32_t number = (start + i) % kWords * kBitsInWord;
    const std::uint64_t looked_at =
        i == 0 ? from_first : (i == kWords ? ~from_first : ~std::uint64_t{0});
    const auto word = bits(*head_, number);
    const std::uint64_t seen = word.load(std::memory_order_relaxed) & looked_at;
    if (seen == 0) continue;
    // The lines behind it come at the same time.
    const std::optional<RingReader>& likely =
        readers_[number + static_cast<std::uint32_t>(std::countr_zero(seen))];
    if (likely) likely->prefetch();
    std::uint64_t rung = word.fetch_and(~looked_at) & looked_at;
    for (; rung != 0 && count < out.size(); rung &= rung - 1) {
      const std::uint32_t ring = number + static_cast<std::uint32_t>(std::countr_zero(rung));
      count += read_ring(ring, out.subspan(count));
      if (count == out.size()) first_ = (ring + 1) % kRings;
    }
    if (rung != 0) word.fetch_or(rung);  // there was no room for these
  }
  return count;
}

RingReader& RingTable::reader(std::uint32_t number) {
  std::optional<RingReader>& known = readers_[number];
  if (!known) known.emplace(head_->controls[number], ring_at(memory_, number));
  return *known;
}

std::size_t RingTable::read_ring(std::uint32_t number, std::span<RingFrame> out) {
  RingReader& from = reader(number);
  const std::size_t count = from.read(out);
  read_.push_back(number);
  if (count == out.size() && from.has_more()) bits(*head_, number).fetch_or(bit_of(number));
  return count;
}

// Where no bit is set nothing was left, and a writer that says nothing is not waited for.
std::vector<RingPlace> RingTable::waiting() {
  std::vector<RingPlace> places;
  for (std::uint32_t number = 0; number < kRings; ++number)
    if ((bits(*head_, number).load() & bit_of(number)) != 0)
      places.push_back({number, reader(number).written()});
  return places;
}

bool RingTable::has_received(std::span<const RingPlace> places) const {
  return std::ranges::all_of(places, [this](const RingPlace& place) {
    return readers_[place.ring]->is_past(place.position);
  });
}

bool RingTable::sleep() {
  if (std::atomic_ref(head_->sleeps).exchange(kSleeps) == kSleeps) return false;
  return std::ranges::any_of(head_->rung,
                             [](std::uint64_t& word) { return std::atomic_ref(word).load() != 0; });
}

void RingTable::wake_up() {
  const std::atomic_ref sleeps(head_->sleeps);
  if (sleeps.load(std::memory_order_relaxed) != kAwake) sleeps.store(kAwake);
}

std::optional<RingSender> RingSender::open(Bytes memory, std::uint32_t number) {
  if (memory.size() < kRingTableBytes || number >= kRings) return std::nullopt;
  RingTableHead& head = head_of(memory);
  const auto ring = RingWriter::open(head.controls[number], ring_at(memory, number));
  if (!ring) return std::nullopt;
  return RingSender(head, number, *ring);
}

void RingSender::prefetch() const {
  ring_.prefetch();
  prefetch_for_write(&head_->rung[number_ / kBitsInWord]);
}

bool RingSender::ring() {
  if (!ring_.publish()) return false;
  bits(*head_, number_).fetch_or(bit_of(number_));
  const std::atomic_ref sleeps(head_->sleeps);
  return sleeps.load() != kAwake && sleeps.exchange(kAwake) != kAwake;
}

}  // namespace softhca::local
