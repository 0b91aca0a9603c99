#include "nic/tag_list.h"

#include <algorithm>

namespace softhca::nic {

std::optional<TagHeader> TagHeader::of(ConstBytes message) {
  if (message.size() < kBytes) return std::nullopt;
  const auto operation = static_cast<std::uint8_t>(message[0]);
  if (operation > static_cast<std::uint8_t>(TagOperation::Eager)) return std::nullopt;
  return TagHeader{.operation = static_cast<TagOperation>(operation),
                   .private_word = load_be<std::uint32_t>(message, 4),
                   .tag = load_be<std::uint64_t>(message, 8)};
}

std::vector<std::byte> TagHeader::bytes() const {
  std::vector<std::byte> out(kBytes);
  out[0] = static_cast<std::byte>(operation);
  store_be(Bytes(out), 4, private_word);
  store_be(Bytes(out), 8, tag);
  return out;
}

std::optional<RendezvousHeader> RendezvousHeader::of(ConstBytes message) {
  if (message.size() < TagHeader::kBytes + kBytes) return std::nullopt;
  return RendezvousHeader{.address = load_be<std::uint64_t>(message, 16),
                          .rkey = load_be<std::uint32_t>(message, 24),
                          .length = load_be<std::uint32_t>(message, 28)};
}

std::uint64_t TagList::Entry::bytes() const {
  std::uint64_t sum = 0;
  for (const Segment& s : segments) sum += s.bytes;
  return sum;
}

std::optional<std::uint32_t> TagList::add(Entry entry, std::uint32_t unexpected_seen) {
  if (entries_.size() >= capacity_) return std::nullopt;
  entry.handle = next_handle_++;
  entry.counts = !is_behind(unexpected_seen);
  entries_.push_back(std::move(entry));
  return entries_.back().handle;
}

bool TagList::remove(std::uint32_t handle) {
  return std::erase_if(entries_, [&](const Entry& e) { return e.handle == handle; }) != 0;
}

bool TagList::synchronize(std::uint32_t unexpected_seen) {
  if (is_behind(unexpected_seen)) return false;
  for (Entry& entry : entries_) entry.counts = true;
  return true;
}

std::optional<TagList::Entry> TagList::match(std::uint64_t tag, std::uint64_t bytes_at_least) {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& e) { return e.counts && ((e.tag ^ tag) & e.mask) == 0; });
  if (found == entries_.end() || found->bytes() < bytes_at_least) return std::nullopt;
  Entry entry = std::move(*found);
  entries_.erase(found);
  return entry;
}

}  // namespace softhca::nic
