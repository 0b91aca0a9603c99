// One line about a datagram of the connection manager; messages are named as in tshark.
#pragma once
#include <string>
#include <string_view>

#include "wire/cm_message.h"

namespace softhca::wire {

// "MsgRcptAck", "ConnectRequest"
std::string_view cm_message_name(const CmMessage& message);
// "CM ConnectReject tid 0x7 local 0x0 remote 0x12 of REQ reason 8 (invalid service id)"
std::string cm_text(const CmMad& mad);

}  // namespace softhca::wire
