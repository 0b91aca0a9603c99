// LiveSettings: what the SOFTHCA_* variables ask of a live device.
//
// A variable that is set to something that it cannot be keeps the device from being opened: a
// program that runs otherwise than its user asked for tells him nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "driver/profile.h"
#include "os/kernel_pin.h"
#include "trace/reason.h"
#include "transport/congestion.h"

namespace softhca::driver {

// Why a machine was not opened.
struct NotOpened {
  NotOpened(const trace::Reason& why, std::string sentences = {})
      : reason(why), particulars(std::move(sentences)) {}
  trace::Reason reason;
  std::string particulars;  // as reason_text() takes them
};

// Who drives the device. ARCHITECTURE.md, "Who turns the crank".
enum class EnginePlacement : std::uint8_t {
  Auto,    // the program's calls, and a thread for what comes without them
  Inline,  // the program's calls alone, until it sleeps on a descriptor of the device
  Thread,  // a thread; polls only look whether a completion is there
};

struct LiveSettings {
  Profile profile{};
  bool scatter{};
  bool quiet{};
  std::optional<os::PinBackend> pin;  // nothing: the best that works
  std::string pcap;                   // file names; "": none
  std::string trace;
  std::string ledger;
  std::string faults;
  transport::CongestionSettings congestion{};
  bool frames{};       // memory of regions is moved into frames of the device
  bool direct = true;  // requests to processes of this host without packets, where that works
  bool rings = true;   // and packets to them through memory
  EnginePlacement engine{};

  // FAILS WITH ProfileUnknown, SettingUnknown
  static Result<LiveSettings, NotOpened> from_environment();
};

}  // namespace softhca::driver
