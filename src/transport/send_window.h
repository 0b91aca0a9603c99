// SendWindow: how many packets may be unacknowledged.
//
// A peer of software receives into a socket buffer whose size nobody tells us, and drops what finds
// no room. So a connection begins with what the smallest usual buffer holds, doubles while all
// arrives, and halves when something did not: then it grows by a packet for each window that
// arrives, as TCP's does (RFC 5681). It never falls below what it began with.
#pragma once
#include <algorithm>
#include <cstdint>

namespace softhca::transport {

class SendWindow {
 public:
  static constexpr std::uint32_t kLeast = 64;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

  explicit SendWindow(std::uint32_t mtu)
      : most_(std::max<std::uint64_t>(kLeast, kMostBytes / mtu)) {}

  std::uint64_t packets() const { return packets_; }

  // `arrived` packets more, of which none was sent again.
  void on_progress(std::uint64_t arrived) {
    if (packets_ < careful_from_) {
      packets_ = std::min(packets_ + arrived, most_);
      return;
    }
    arrived_ += arrived;
    if (arrived_ < packets_) return;
    arrived_ = 0;
    packets_ = std::min(packets_ + 1, most_);
  }
  void on_loss() {
    packets_ = careful_from_ = std::max<std::uint64_t>(kLeast, packets_ / 2);
    arrived_ = 0;
  }

 private:
  std::uint64_t most_;
  std::uint64_t packets_ = kLeast;
  std::uint64_t careful_from_ = UINT64_MAX;  // no more doubling
  std::uint64_t arrived_ = 0;                // since it last grew
};

}  // namespace softhca::transport
