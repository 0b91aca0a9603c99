// ContextConnections: the connection manager of a context's device, for librdmacm.so.1.
//
// Threads  any
#pragma once
#include "abi/connections.h"
#include "driver/live/live_device.h"

namespace softhca::abi {

class ContextConnections final : public Connections {
 public:
  explicit ContextConnections(driver::LiveDevice& device) : device_(device) {}
  Result<cm::ListenerId, trace::Reason> listen(const cm::ListenRequest& request,
                                               cm::ConnectionSink& sink) override;
  void set_backlog(cm::ListenerId listener, std::uint32_t backlog) override;
  void close(cm::ListenerId listener) override;
  Id connect(const cm::ConnectRequest& request, cm::ConnectionSink& sink) override;
  Id resolve(const cm::ResolveRequest& request, cm::ConnectionSink& sink) override;
  Done accept(wire::CommId id, const cm::AcceptRequest& request) override;
  Done answer(wire::CommId id, const cm::ResolveAnswer& resolution) override;
  Done reject(wire::CommId id, ConstBytes private_bytes) override;
  Done establish(wire::CommId id, ConstBytes private_bytes) override;
  Done disconnect(wire::CommId id, ConstBytes private_bytes) override;
  void destroy(wire::CommId id) override;
  void watch_removal(cm::ConnectionSink& sink) override;

 private:
  driver::LiveDevice& device_;
};

}  // namespace softhca::abi
