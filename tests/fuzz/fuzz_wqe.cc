// Descriptors: whatever the program's memory holds, the device neither crashes nor hangs, touches
// only what is registered, and completes no more requests than were posted.
#include <algorithm>

#include "flat_device.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace softhca;
  fuzz::FlatDevice flat;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  // Send slots first, then receive slots; a slot that begins with 0xff gets a right index and key,
  // so that what lies behind the first checks is reached too.
  const auto fill = [&](std::uint64_t ring, std::uint32_t stride, std::size_t index_at,
                        std::size_t key_at) {
    for (std::uint32_t i = 0; i < flat.kSlots && size != 0; ++i) {
      const std::size_t count = std::min<std::size_t>(stride, size);
      std::byte* const slot = flat.memory.memory.data() + ring + std::uint64_t{i} * stride;
      std::copy_n(bytes, count, slot);
      if (*bytes == std::byte{0xff}) {
        std::memcpy(slot + index_at, &i, sizeof i);
        std::memcpy(slot + key_at, &flat.key.value, sizeof flat.key.value);
      }
      // Work on keys: of the window that there is.
      if (*bytes == std::byte{0xff} && ring == flat.kSend) {
        nic::SendWqe wqe;
        std::memcpy(&wqe, slot, sizeof wqe);
        const auto opcode = static_cast<transport::WorkOpcode>(wqe.opcode);
        if (opcode == transport::WorkOpcode::LocalInvalidate) wqe.rkey = flat.window.value;
        if (opcode == transport::WorkOpcode::BindWindow) {
          wqe.immediate = flat.key.value;
          wqe.rkey = (flat.window.value & ~0xffu) | (wqe.rkey & 0xff);
          wqe.compare = std::uint64_t{flat.window.value} << 32 | (wqe.compare & 0xff);
        }
        std::memcpy(slot, &wqe, sizeof wqe);
      }
      bytes += count;
      size -= count;
    }
  };
  fill(flat.kSend, flat.kStride, offsetof(nic::SendWqe, index),
       sizeof(nic::SendWqe) + offsetof(nic::Segment, lkey));
  fill(flat.kReceive, flat.kReceiveStride, offsetof(nic::ReceiveWqe, index),
       sizeof(nic::ReceiveWqe) + offsetof(nic::Segment, lkey));
  flat.ring(nic::Doorbell::Receive, flat.kSlots);
  flat.ring(nic::Doorbell::Send, flat.kSlots);
  flat.run(100);  // nobody answers: all retries are spent, everything is flushed
  fuzz::require(flat.tracer.counters().get(trace::Counter::CqesWritten) <= 2 * flat.kSlots);
  flat.require_guards();
  return 0;
}
