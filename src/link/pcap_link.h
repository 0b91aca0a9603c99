// PcapLink: writes every frame that passes to a capture file that tcpdump and tshark read.
//
// A decorator around any link. Time stamps are the caller's, counted from a start that is given.
//
// Threads      as the link inside
// Invariants   a record is appended by one write, so that several processes may share a file
// See also     link/pcap_format.h
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "link/link.h"
#include "os/append_file.h"

namespace softhca::link {

struct PcapFailure {
  int error{};       // errno
  std::string text;  // "/no/such/run.pcap: open: No such file or directory"
};

class PcapLink final : public Link {
 public:
  // Creates the file or appends to it. `start_ns` is what Time{0} is, in ns since 1970.
  // REQUIRES: `inner` lives longer.
  static Result<std::unique_ptr<PcapLink>, PcapFailure> open(Link& inner, const std::string& path,
                                                             std::int64_t start_ns);

  std::size_t send(std::span<const Frame> frames, Time now) override;
  std::size_t receive(std::span<Frame> out, Time now) override;
  Time next_arrival() const override { return inner_.next_arrival(); }

  // In the child of a fork: closes the file.
  void abandon() { file_.close(); }

  // Frames that could not be written (disk full).
  std::uint64_t lost() const { return lost_; }

 private:
  PcapLink(Link& inner, os::AppendFile file, std::int64_t start_ns)
      : inner_(inner), file_(std::move(file)), start_ns_(start_ns) {}
  void write(std::span<const Frame> frames, Time now);

  Link& inner_;
  os::AppendFile file_;
  std::int64_t start_ns_;
  std::uint64_t lost_ = 0;
  std::vector<std::byte> record_;
};

}  // namespace softhca::link
