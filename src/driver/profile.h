// Profile: the rules in which devices differ, as those of one that a program may meet elsewhere.
//
// A profile takes away only: it narrows what this device offers, so whatever runs under it runs
// without it. Its limits are the smaller of that device's and ours.
//
// See also  profile.cc, which cites where each difference is known from
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/flags.h"
#include "nic/limits.h"

namespace softhca::driver {

// What one device has and another has not.
enum class Feature : std::uint8_t {
  Xrc = 1,
  RawPackets = 2,  // and what belongs to them: work queues, spreading, flow rules
  OnDemand = 4,
  DeviceMemory = 8,
  TagMatching = 16,
};

struct Profile {
  std::string_view name = "softhca";
  // Pages over the memlock limit are refused, and memory is reached by the frames that were pinned.
  bool holds_memory{};
  // A slot of a queue is free again when a completion of it, or of one behind it, has been polled.
  bool frees_when_polled{};
  // Another process's XRC domain of a file is refused, instead of making one beside it.
  bool shares_xrc_files{};
  Flags<Feature> missing{};
  std::uint32_t sges = nic::kMaxSges;
  std::uint32_t shared_sges = nic::kMaxSges;  // of a receive in a shared queue
  std::uint32_t cqes = nic::kMaxCqes;

  bool has(Feature feature) const { return !missing.has(feature); }
};

std::span<const Profile> profiles();
std::optional<Profile> find_profile(std::string_view name);

// SOFTHCA_PROFILE, and on top of it what SOFTHCA_STRICT asks for; nothing if there is no such
// profile.
std::optional<Profile> profile_from_environment();

}  // namespace softhca::driver
