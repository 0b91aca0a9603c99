#include "link/pcap_link.h"

#include "link/pcap_format.h"
#include "wire/icrc.h"

namespace softhca::link {

Result<std::unique_ptr<PcapLink>, PcapFailure> PcapLink::open(Link& inner, const std::string& path,
                                                              std::int64_t start_ns) {
  auto file = os::AppendFile::open(path, pcap_head());
  if (!file) return PcapFailure{file.error().number, path + ": " + os::error_text(file.error())};
  return std::unique_ptr<PcapLink>(new PcapLink(inner, std::move(*file), start_ns));
}

std::size_t PcapLink::send(std::span<const Frame> frames, Time now) {
  const std::size_t taken = inner_.send(frames, now);
  write(frames.first(taken), now);
  return taken;
}

std::size_t PcapLink::receive(std::span<Frame> out, Time now) {
  const std::size_t count = inner_.receive(out, now);
  write(out.first(count), now);
  return count;
}

void PcapLink::write(std::span<const Frame> frames, Time now) {
  for (Frame frame : frames) {
    wire::Datagram& datagram = frame.datagram;
    if (datagram.is_ipv4() && !datagram.identification)
      datagram.identification = wire::find_identification(datagram, frame.bytes);
    record_.clear();
    append_pcap_record(record_, frame, start_ns_ + (now - Time{}).nanoseconds());
    if (!file_.append(record_)) ++lost_;
  }
}

}  // namespace softhca::link
