// EngineState: what an Engine holds. Private to driver/.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver/connections.h"
#include "driver/engine.h"
#include "driver/engine_parts.h"
#include "driver/particulars.h"
#include "driver/registration.h"
#include "nic/device.h"

namespace softhca::driver {

inline constexpr std::uint32_t kEventSlots = 16384;  // more than queues can have events pending

// 0 is what programs leave there that do not care.
constexpr std::uint8_t hop_limit_of(const transport::AddressVector& address) {
  return address.hop_limit == 0 ? std::uint8_t{64} : address.hop_limit;
}

struct EngineState {
  explicit EngineState(const EngineParts& p);

  EngineParts parts;
  nic::Device device;
  Registrations registrations;
  RingMemory event_ring;
  std::uint64_t events_read = 0;
  std::vector<Time> interrupts;  // that arrive later (simulated costs)
  FreeList pds;
  // In the order of their numbers, so that what is undone for all is undone in one order.
  std::map<std::uint32_t, std::uint32_t> pds_in_use;                  // whose each is
  std::map<std::uint32_t, std::uint32_t> cq_programs;                 // likewise, by CQN
  std::map<std::uint32_t, std::unique_ptr<CompletionQueue>> cqs;      // by CQN
  std::map<std::uint32_t, std::unique_ptr<QueuePair>> qps;            // by QPN
  std::map<std::uint32_t, std::unique_ptr<SharedReceiveQueue>> srqs;  // by SRQN
  struct DeviceAllocation {
    std::uint64_t at{};  // in the device's memory
    std::uint64_t bytes{};
    std::uint32_t program{};
  };
  std::map<std::uint32_t, DeviceAllocation> device_memory;  // by handle
  std::uint32_t next_dm_handle = 1;
  struct Xrcd {
    std::optional<FileIdentity> file;
    std::uint32_t opened{};
    std::uint32_t program{};  // whose it is
  };
  FreeList xrcd_numbers{1, nic::kMaxXrcds};
  std::map<std::uint32_t, Xrcd> xrcds;       // by number
  std::unique_ptr<Connections> connections;  // null until they are asked for
  std::vector<wire::Qpn> established;        // that their first packet has come
  PortAttributes port;
  std::vector<GidEntry> gids;
  std::vector<EventSink*> sinks;
  Engine::ReasonListener listener;
  bool stopped = false;

  // What is about the device or its port.
  void tell_all(AsyncEventType type, const trace::Reason& reason) const {
    for (EventSink* sink : sinks) sink->async_event(type, nullptr, nullptr, reason);
  }
  void on_interrupt(Time arrives_at, Time now);
  void read_events();
  void deliver(const nic::Eqe& eqe);
  // What calls are refused for is told once for each reason.
  std::set<trace::ReasonId> told_calls;
  trace::Reason refused(std::string_view call, const trace::Reason& reason,
                        const QueuePair* qp = nullptr);
  // What the profile's device has not.
  trace::Reason not_offered(std::string_view call) {
    return refused(call, {.id = trace::ReasonId::NotInProfile});
  }
  // After a change of flow rules or of a raw packet queue pair.
  void open_for_frames();
  void tell(std::string_view what, const trace::Reason& reason, const QueuePair* qp = nullptr,
            trace::Telling how = trace::Telling::Cause) const;
};

}  // namespace softhca::driver
