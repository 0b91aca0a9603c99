#include "abi/rsocket/defaults.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "os/proc_file.h"

namespace softhca::abi {
namespace {

template <class Number>
void read_into(Number& number, const char* name) {
  const auto text = os::read_proc_file(("/etc/rdma/rsocket/" + std::string(name)).c_str());
  if (!text) return;
  Number found{};
  const char* const end = text->data() + text->size();
  if (std::from_chars(text->data(), end, found).ec == std::errc{}) number = found;
}

Defaults read_defaults() {
  Defaults found;
  rsocket::StreamShape& shape = found.shape;
  read_into(shape.receive_bytes, "mem_default");
  read_into(shape.send_bytes, "wmem_default");
  read_into(shape.sends, "sqsize_default");
  read_into(shape.receives, "rqsize_default");
  read_into(shape.mappings, "iomap_size");
  read_into(found.inline_bytes, "inline_default");
  auto polls_us = static_cast<std::uint32_t>(found.polls.ps / microseconds(1).ps);
  read_into(polls_us, "polling_time");
  found.polls = microseconds(polls_us);
  auto sleeps_ms = static_cast<std::uint32_t>(found.sleeps.ps / milliseconds(1).ps);
  read_into(sleeps_ms, "wake_up_interval");
  found.sleeps = milliseconds(std::max(sleeps_ms, 1u));
  return found;
}

}  // namespace

const Defaults& defaults() {
  static const Defaults read = read_defaults();
  return read;
}

}  // namespace softhca::abi
