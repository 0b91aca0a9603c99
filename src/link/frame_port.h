// FramePort: whole Ethernet frames to and from an interface, for raw packet queue pairs.
//
// RoCEv2 does not pass here (link/link.h). Closed until there is a use for it. What is sent here is
// not received here, except where the interface itself brings it back.
//
// Threads  owned by the device's owner
#pragma once
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "trace/reason.h"
#include "wire/ethernet.h"

namespace softhca::link {

// What it is open for; each receives also what those before it do.
enum class FrameUse : std::uint8_t {
  None,        // closed
  Sending,     // receives nothing
  Own,         // what the interface takes in anyway
  Multicasts,  // to any group
  Everything,
};

class FramePort {
 public:
  struct Sent {
    std::size_t taken{};  // from the front; the rest finds no room now
    std::size_t lost{};   // of these, refused for good
  };

  virtual ~FramePort() = default;

  // FAILS WITH FramesStayInside; then it is closed.
  virtual Result<void, trace::Reason> open_for(FrameUse use) = 0;

  // The rest REQUIRES that it is open; receive(), that it receives something.
  virtual Sent send(std::span<const ConstBytes> frames) = 0;
  // At most out.size(). They stay valid until the next call of this method.
  virtual std::size_t receive(std::span<ConstBytes> out) = 0;
  virtual wire::MacAddress address() const = 0;
  // Whatever is sent is received again, here and by others on the interface: loopback.
  virtual bool brings_back() const = 0;
};

}  // namespace softhca::link
