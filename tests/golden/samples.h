// Samples: the RoCEv2 packets of a capture file.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pcap/pcap.h>

#include <memory>
#include <string>
#include <vector>

#include "wire/datagram.h"
#include "wire/packet.h"

namespace softhca::wire {

inline const std::string kFolder = SOFTHCA_GOLDEN_DIR "/";

struct Sample {
  std::string file;
  std::size_t number{};  // within the file, from 1
  std::vector<std::byte> ip_packet;
  Datagram datagram;
  std::size_t headers_bytes{};  // of IP and UDP

  ConstBytes udp_payload() const { return ConstBytes(ip_packet).subspan(headers_bytes); }
  std::string where() const { return fmt::format("{} packet {}", file, number); }
};

inline constexpr std::size_t kEthernetBytes = 14;

inline void append_samples(const std::string& file, std::vector<Sample>& samples) {
  char error[PCAP_ERRBUF_SIZE] = "";
  const std::unique_ptr<pcap_t, decltype(&pcap_close)> pcap(
      pcap_open_offline((kFolder + file).c_str(), error), &pcap_close);
  ASSERT_NE(pcap, nullptr) << error;
  ASSERT_EQ(pcap_datalink(pcap.get()), DLT_EN10MB);
  pcap_pkthdr* header = nullptr;
  const u_char* frame = nullptr;
  int status = 0;
  for (std::size_t number = 0; (status = pcap_next_ex(pcap.get(), &header, &frame)) == 1;) {
    ASSERT_EQ(header->caplen, header->len) << file;
    if (header->caplen < kEthernetBytes) continue;
    const auto bytes = std::as_bytes(std::span(frame, header->caplen)).subspan(kEthernetBytes);
    const auto parsed = parse_ip_udp(bytes);
    if (!parsed || parsed->datagram.destination_port != kUdpPort) continue;
    const std::size_t headers_bytes = parsed->datagram.is_ipv4() ? 28 : 48;
    const auto ip_packet = bytes.first(headers_bytes + parsed->udp_payload.size());
    samples.push_back(
        {file, ++number, {ip_packet.begin(), ip_packet.end()}, parsed->datagram, headers_bytes});
  }
  ASSERT_EQ(status, PCAP_ERROR_BREAK) << pcap_geterr(pcap.get());  // the end of the file
}

}  // namespace softhca::wire
