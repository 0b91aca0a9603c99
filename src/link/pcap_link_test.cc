#include "link/pcap_link.h"

#include <gtest/gtest.h>
#include <pcap.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "link/pcap_format.h"
#include "link/sim_link.h"
#include "os/random.h"
#include "wire/datagram.h"

namespace softhca::link {
namespace {

const wire::Gid kA4 = wire::Gid::of_ipv4({192, 0, 2, 1});
const wire::Gid kB4 = wire::Gid::of_ipv4({192, 0, 2, 2});
const wire::Gid kA6 = *wire::Gid::parse("fd00::1");
const wire::Gid kB6 = *wire::Gid::parse("fd00::2");
constexpr std::int64_t kStart = 1'700'000'000'123'456'789;

struct Record {
  std::int64_t stamp_ns;
  std::vector<std::byte> bytes;
};

// libpcap as the judge.
std::vector<Record> read_capture(const std::string& path) {
  std::array<char, PCAP_ERRBUF_SIZE> error{};
  pcap_t* const capture = pcap_open_offline_with_tstamp_precision(
      path.c_str(), PCAP_TSTAMP_PRECISION_NANO, error.data());
  EXPECT_NE(capture, nullptr) << error.data();
  if (capture == nullptr) return {};
  EXPECT_EQ(pcap_datalink(capture), DLT_EN10MB);
  std::vector<Record> records;
  pcap_pkthdr* head = nullptr;
  const u_char* bytes = nullptr;
  while (pcap_next_ex(capture, &head, &bytes) == 1) {
    EXPECT_EQ(head->caplen, head->len);
    const auto all = std::as_bytes(std::span(bytes, head->caplen));
    records.push_back({std::int64_t{head->ts.tv_sec} * 1'000'000'000 + head->ts.tv_usec,
                       {all.begin(), all.end()}});
  }
  pcap_close(capture);
  return records;
}

class PcapLinkTest : public ::testing::Test {
 protected:
  ~PcapLinkTest() override { std::filesystem::remove(path_); }

  SimNetwork network_{1, {}};
  std::array<wire::Gid, 2> left_{kA4, kA6};
  std::array<wire::Gid, 2> right_{kB4, kB6};
  Link& a_ = network_.attach(left_);
  Link& b_ = network_.attach(right_);
  std::string path_ =
      ::testing::TempDir() + "softhca-" + std::to_string(os::random_seed()) + ".pcap";
};

// One's complement sum of a header with its checksum in place is all ones.
std::uint32_t folded_sum(ConstBytes bytes) {
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) sum += load_be<std::uint16_t>(bytes, at);
  if (bytes.size() % 2 != 0) sum += std::to_integer<std::uint32_t>(bytes.back()) << 8;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

TEST_F(PcapLinkTest, WritesWhatIsSentAndReceivedAsEthernetFrames) {
  const std::array<std::byte, 5> payload{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                         std::byte{5}};
  const std::array<Frame, 2> frames{
      Frame{{.source = kA4, .destination = kB4, .source_port = 0xc001, .identification = {}},
            payload},
      Frame{{.source = kA6, .destination = kB6, .source_port = 0xc002, .traffic_class = 0x68},
            payload}};
  {
    auto sender = PcapLink::open(a_, path_, kStart);
    auto receiver = PcapLink::open(b_, path_, kStart);
    ASSERT_TRUE(sender && receiver);
    EXPECT_EQ((*sender)->send(frames, Time{} + nanoseconds(11)), 2u);
    std::array<Frame, 4> out;
    EXPECT_EQ((*receiver)->receive(out, Time{} + nanoseconds(22)), 2u);
    EXPECT_EQ((*sender)->lost() + (*receiver)->lost(), 0u);
  }
  const auto records = read_capture(path_);
  ASSERT_EQ(records.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].stamp_ns, kStart + (i < 2 ? 11 : 22));
    const Frame& frame = frames[i % 2];
    const ConstBytes bytes = records[i].bytes;
    EXPECT_EQ(bytes[0], std::byte{2});
    EXPECT_EQ(load_be<std::uint16_t>(bytes, 12), i % 2 == 0 ? 0x0800 : 0x86dd);
    const auto parsed = wire::parse_ip_udp(bytes.subspan(14));
    ASSERT_TRUE(parsed);
    EXPECT_TRUE(std::ranges::equal(parsed->udp_payload, payload));
    wire::Datagram expected = frame.datagram;
    if (expected.is_ipv4()) expected.identification = 0;
    EXPECT_EQ(parsed->datagram, expected);
  }
}

TEST_F(PcapLinkTest, WritesChecksumsThatAreRight) {
  const std::array<std::byte, 7> payload{std::byte{0xff}, std::byte{0xee}, std::byte{9}};
  for (const bool v4 : {true, false}) {
    std::vector<std::byte> record;
    const Frame frame{{.source = v4 ? kA4 : kA6, .destination = v4 ? kB4 : kB6}, payload};
    append_pcap_record(record, frame, 0);
    const ConstBytes ip = ConstBytes(record).subspan(16 + 14);
    if (v4) {
      EXPECT_EQ(folded_sum(ip.first(20)), 0xffffu);
    }
    const ConstBytes addresses = v4 ? ip.subspan(12, 8) : ip.subspan(8, 32);
    const ConstBytes udp = ip.subspan(v4 ? 20 : 40);
    std::vector<std::byte> pseudo(addresses.begin(), addresses.end());
    pseudo.insert(pseudo.end(),
                  {std::byte{0}, std::byte{17}, std::byte{0}, static_cast<std::byte>(udp.size())});
    pseudo.insert(pseudo.end(), udp.begin(), udp.end());
    EXPECT_EQ(folded_sum(pseudo), 0xffffu);
  }
}

TEST_F(PcapLinkTest, WritesOnlyWhatTheLinkInsideTook) {
  class Full final : public Link {
   public:
    std::size_t send(std::span<const Frame>, Time) override { return 1; }
    std::size_t receive(std::span<Frame>, Time) override { return 0; }
    Time next_arrival() const override { return Time{5}; }
  } full;
  auto link = PcapLink::open(full, path_, 0);
  ASSERT_TRUE(link);
  const std::array<Frame, 3> frames{};
  EXPECT_EQ((*link)->send(frames, Time{}), 1u);
  EXPECT_EQ((*link)->next_arrival(), Time{5});
  EXPECT_EQ(read_capture(path_).size(), 1u);
}

TEST_F(PcapLinkTest, SaysWhyAFileCannotBeWritten) {
  const auto link = PcapLink::open(a_, "/nonexistent/run.pcap", 0);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().error, ENOENT);
  EXPECT_EQ(link.error().text, "/nonexistent/run.pcap: open: No such file or directory");
}

}  // namespace
}  // namespace softhca::link
