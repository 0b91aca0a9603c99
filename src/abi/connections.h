// Connections: what librdmacm.so.1 asks of libibverbs.so.1 beyond verbs: the connection manager of
// the port of an open device.
//
// Both libraries are of one build; the symbol node IBVERBS_SOFTHCA holds them together. Ids are the
// connection manager's. An id that was destroyed, or whose device has stopped, is answered with
// ConnectionState.
//
// Threads  any. A sink is called with the device owned: it returns at once, and calls nothing here
// See also cm/agent.h (what the calls mean), driver/connections.h (who does them)
#pragma once
#include <infiniband/verbs.h>

#include "base/result.h"
#include "cm/event.h"

namespace softhca::abi {

class Connections {
 public:
  using Done = Result<void, trace::Reason>;
  using Id = Result<wire::CommId, trace::Reason>;

  // Requests come to `sink` from now until close(). Every address of the port that the request is
  // for is opened for packets, also those that come later.
  // FAILS WITH ServiceTaken (in this process or another one), UdpPortTaken, NoInterface, LeftBehind
  virtual Result<cm::ListenerId, trace::Reason> listen(const cm::ListenRequest& request,
                                                       cm::ConnectionSink& sink) = 0;
  virtual void set_backlog(cm::ListenerId listener, std::uint32_t backlog) = 0;
  // The sink hears nothing more of the listener; what it has brought keeps its own sinks.
  virtual void close(cm::ListenerId listener) = 0;

  // All of these fail as those of cm::Agent, and with UdpPortTaken, NoInterface, LeftBehind.
  virtual Id connect(const cm::ConnectRequest& request, cm::ConnectionSink& sink) = 0;
  virtual Id resolve(const cm::ResolveRequest& request, cm::ConnectionSink& sink) = 0;
  virtual Done accept(wire::CommId id, const cm::AcceptRequest& request) = 0;
  virtual Done answer(wire::CommId id, const cm::ResolveAnswer& resolution) = 0;
  virtual Done reject(wire::CommId id, ConstBytes private_bytes) = 0;
  virtual Done establish(wire::CommId id, ConstBytes private_bytes) = 0;
  virtual Done disconnect(wire::CommId id, ConstBytes private_bytes) = 0;
  // After it the sink hears nothing more of the id. Nothing happens if there is no such id.
  virtual void destroy(wire::CommId id) = 0;

  // The sink hears, as long as the device is, that it is removed.
  virtual void watch_removal(cm::ConnectionSink& sink) = 0;

 protected:
  ~Connections() = default;
};

// Of the device that the context has open; valid until the context is closed. Never null.
extern "C" Connections* ibv_softhca_connections(ibv_context* context) noexcept;

}  // namespace softhca::abi
