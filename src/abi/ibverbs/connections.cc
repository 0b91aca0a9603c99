#include "abi/ibverbs/connections.h"

#include "abi/entry.h"
#include "abi/ibverbs/context.h"
#include "driver/connections.h"

namespace softhca::abi {
namespace {

// What call(driver::Connections&, now) gives, which owns the device.
template <class Call>
auto managed(driver::LiveDevice& device, Call&& call)
    -> decltype(call(std::declval<driver::Connections&>(), Time{})) {
  if (device.is_left_behind()) return device.left_behind();
  return device.run(
      [&](driver::Engine& engine, Time now) { return call(engine.connections(), now); });
}

}  // namespace

Result<cm::ListenerId, trace::Reason> ContextConnections::listen(const cm::ListenRequest& request,
                                                                 cm::ConnectionSink& sink) {
  return managed(device_, [&](auto& cm, Time) { return cm.listen(request, sink); });
}

void ContextConnections::set_backlog(cm::ListenerId listener, std::uint32_t backlog) {
  if (device_.is_left_behind()) return;
  device_.run(
      [&](driver::Engine& engine, Time) { engine.connections().set_backlog(listener, backlog); });
}

void ContextConnections::close(cm::ListenerId listener) {
  if (device_.is_left_behind()) return;
  device_.run([&](driver::Engine& engine, Time) { engine.connections().close(listener); });
}

Connections::Id ContextConnections::connect(const cm::ConnectRequest& request,
                                            cm::ConnectionSink& sink) {
  return managed(device_, [&](auto& cm, Time now) { return cm.connect(request, sink, now); });
}

Connections::Id ContextConnections::resolve(const cm::ResolveRequest& request,
                                            cm::ConnectionSink& sink) {
  return managed(device_, [&](auto& cm, Time now) { return cm.resolve(request, sink, now); });
}

Connections::Done ContextConnections::accept(wire::CommId id, const cm::AcceptRequest& request) {
  return managed(device_, [&](auto& cm, Time now) { return cm.accept(id, request, now); });
}

Connections::Done ContextConnections::answer(wire::CommId id, const cm::ResolveAnswer& resolution) {
  return managed(device_, [&](auto& cm, Time now) { return cm.answer(id, resolution, now); });
}

Connections::Done ContextConnections::reject(wire::CommId id, ConstBytes private_bytes) {
  return managed(device_, [&](auto& cm, Time now) { return cm.reject(id, private_bytes, now); });
}

Connections::Done ContextConnections::establish(wire::CommId id, ConstBytes private_bytes) {
  return managed(device_, [&](auto& cm, Time now) { return cm.establish(id, private_bytes, now); });
}

Connections::Done ContextConnections::disconnect(wire::CommId id, ConstBytes private_bytes) {
  return managed(device_,
                 [&](auto& cm, Time now) { return cm.disconnect(id, private_bytes, now); });
}

void ContextConnections::destroy(wire::CommId id) {
  if (device_.is_left_behind()) return;
  device_.run([&](driver::Engine& engine, Time now) { engine.connections().destroy(id, now); });
}

void ContextConnections::watch_removal(cm::ConnectionSink& sink) {
  if (device_.is_left_behind()) return;
  device_.run([&](driver::Engine& engine, Time) { engine.connections().watch_removal(sink); });
}

SOFTHCA_ENTRY("IBVERBS_SOFTHCA", Connections*, ibv_softhca_connections, (ibv_context * context),
              noexcept) {
  return &Context::of(context).connections();
}
static_assert(
    std::is_same_v<decltype(&ibv_softhca_connections), decltype(&entry_ibv_softhca_connections)>);

}  // namespace softhca::abi
