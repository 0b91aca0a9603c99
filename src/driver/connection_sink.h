// ConnectionSink: who hears what becomes of a conversation, or of a listener's requests.
//
// Threads  called with the device owned: returns at once, and calls nothing of the engine
#pragma once
#include "cm/event.h"

namespace softhca::driver {

class ConnectionSink {
 public:
  // A ConnectRequest or ResolveRequest comes to the listener's sink, which gives the sink of the
  // new conversation; null: the program does not want it, and it is rejected. What is given for
  // other events is ignored.
  virtual ConnectionSink* on_event(const cm::Event& event) = 0;

 protected:
  ~ConnectionSink() = default;
};

}  // namespace softhca::driver
