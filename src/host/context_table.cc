#include "host/context_table.h"

#include <optional>

#include "base/assert.h"

namespace softhca::host {
namespace {

constexpr std::uint64_t kPresent = 1;
constexpr unsigned kTypeShift = 2;
constexpr std::uint64_t kTypeMask = 3;
constexpr std::uint64_t kLowReserved = 0xff0;  // bits 11:4
constexpr unsigned kDomainShift = 8;
constexpr std::uint64_t kWidthMask = 7;
constexpr std::uint64_t kHighKnown = kWidthMask | std::uint64_t{0xffff} << kDomainShift;
constexpr std::uint8_t kWidth48 = 2;

// An entry has two words.
std::size_t root_word(pcie::RequesterId device) { return std::size_t{device.value} >> 8 << 1; }
std::size_t context_word(pcie::RequesterId device) { return (device.value & 0xffu) << 1; }

FrameIndex context_root(TableFrames& frames) {
  const std::optional<FrameIndex> root = frames.take();
  ASSERT(root.has_value());
  return *root;
}

}  // namespace

ContextTable::ContextTable(TableFrames& frames, trace::Tracer& tracer)
    : frames_(frames), tracer_(tracer), root_(context_root(frames)) {
  tracer_.count(trace::Counter::IommuTablePages);
}

ContextTable::~ContextTable() {
  for (std::size_t word = 0; word < kTableEntries; word += 2) {
    const std::uint64_t e = frames_.load(root_, word);
    if ((e & kPresent) == 0) continue;
    const FrameIndex contexts = entry::next_table(e);
    for (std::size_t i = 0; i < kTableEntries; ++i) frames_.store(contexts, i, 0);
    frames_.store(root_, word, 0);
    frames_.give_back(contexts);
  }
  frames_.give_back(root_);
}

Result<void, trace::Reason> ContextTable::set(pcie::RequesterId device,
                                              const ContextEntry& context) {
  const std::uint64_t above = frames_.load(root_, root_word(device));
  FrameIndex contexts = entry::next_table(above);
  if ((above & kPresent) == 0) {
    const std::optional<FrameIndex> fresh = frames_.take();
    if (!fresh)
      return trace::Reason{.id = trace::ReasonId::AddressesExhausted,
                           .object = device.value,
                           .address = 0,
                           .length = 0,
                           .low = 0,
                           .high = 0};
    tracer_.count(trace::Counter::IommuTablePages);
    contexts = *fresh;
    frames_.store(root_, root_word(device), std::uint64_t{contexts} << 12 | kPresent);
  }
  // The word with the present bit last.
  frames_.store(contexts, context_word(device) + 1,
                std::uint64_t{context.domain} << kDomainShift | context.width);
  frames_.store(contexts, context_word(device),
                std::uint64_t{context.second_level} << 12 |
                    static_cast<std::uint64_t>(context.type) << kTypeShift | kPresent);
  return {};
}

void ContextTable::clear(pcie::RequesterId device) {
  const std::uint64_t above = frames_.load(root_, root_word(device));
  if ((above & kPresent) == 0) return;
  const FrameIndex contexts = entry::next_table(above);
  frames_.store(contexts, context_word(device), 0);
  frames_.store(contexts, context_word(device) + 1, 0);
}

Result<ContextEntry, TranslationFault> ContextTable::find(pcie::RequesterId device) const {
  const std::uint64_t above = frames_.load(root_, root_word(device));
  if ((above & kPresent) == 0) return TranslationFault{VtdReason::NoRootEntry, false};
  const FrameIndex contexts = entry::next_table(above);
  const std::uint64_t low = frames_.load(contexts, context_word(device));
  const std::uint64_t high = frames_.load(contexts, context_word(device) + 1);
  if ((low & kPresent) == 0) return TranslationFault{VtdReason::NoContextEntry, false};
  const ContextEntry found{.type = static_cast<TranslationType>(low >> kTypeShift & kTypeMask),
                           .width = static_cast<std::uint8_t>(high & kWidthMask),
                           .domain = static_cast<std::uint16_t>(high >> kDomainShift),
                           .second_level = entry::next_table(low)};
  if (found.type > TranslationType::PassThrough || found.width != kWidth48 ||
      (low & kLowReserved) != 0 || (high & ~kHighKnown) != 0)
    return TranslationFault{VtdReason::BadContextEntry, false};
  return found;
}

}  // namespace softhca::host
