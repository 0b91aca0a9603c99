#include "driver/profile.h"

#include <algorithm>

#include "os/environment.h"

namespace softhca::driver {
namespace {

// The rules that all hardware has.
constexpr Profile strict_about(Profile profile) {
  profile.holds_memory = profile.frees_when_polled = profile.shares_xrc_files = true;
  return profile;
}

constexpr Profile kProfiles[] = {
    {},
    strict_about({.name = "strict"}),
    // rdma_rxe of Linux 6.1: `ibv_devinfo -v` on it, and which tests of rdma-core's suite it skips.
    // Its driver frees a slot when the request is done, and pins by the kernel's ib_umem_get.
    {.name = "rxe",
     .holds_memory = true,
     .missing = Flags(Feature::Xrc) | Feature::RawPackets | Feature::OnDemand |
                Feature::DeviceMemory | Feature::TagMatching,
     .shared_sges = 27,
     .cqes = 32767},
    // ConnectX-5 with rdma-core 44: max_sge and max_srq_sge as its `ibv_devinfo -v` is published;
    // its provider moves the tail of a queue when a completion is polled. Not seen here.
    strict_about({.name = "mlx5", .sges = 30, .shared_sges = 31}),
};

}  // namespace

std::span<const Profile> profiles() { return kProfiles; }

std::optional<Profile> find_profile(std::string_view name) {
  const auto* const found = std::ranges::find(kProfiles, name, &Profile::name);
  if (found == std::end(kProfiles)) return std::nullopt;
  return *found;
}

std::optional<Profile> profile_from_environment() {
  const auto profile = find_profile(os::env_text("SOFTHCA_PROFILE").value_or("softhca"));
  if (!profile || !os::env_flag("SOFTHCA_STRICT").value_or(false)) return profile;
  return strict_about(*profile);
}

}  // namespace softhca::driver
