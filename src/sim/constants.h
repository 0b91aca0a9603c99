// Constants: what things cost in a modelled machine, and who measured it.
//
// One table; every row names its source. What nobody published is derived or assumed, and says so.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "base/clock.h"

namespace softhca::sim {

enum class Constant : std::uint8_t {
  DmaRead,
  DmaWrite,
  IotlbMiss,
  LinkByte,
  TlpHeader,
  PeerThroughRoot,
  CableDelay,
  CableByte,
  PostRequest,
  PollCompletion,
  SystemCall,
  WakeAfterShortSleep,
  WakeAfterLongSleep,
  Waking,
  SocketSendByte,
  SocketReceiveByte,
  RegisterFixed,
  RegisterPage,
  TouchPage,
  Count_,
};

struct ConstantRow {
  Constant constant;
  std::string_view name;
  Duration cost;
  std::string_view source;
};

std::span<const ConstantRow> constants();
Duration cost_of(Constant constant);

}  // namespace softhca::sim
