#include "driver/sysfs_tree.h"

#include <gtest/gtest.h>

#include "driver/link_rate.h"
#include "trace/counters.h"

namespace softhca::driver {
namespace {

DeviceDescription eth(std::uint32_t ordinal, const std::string& interface) {
  DeviceDescription device{.name = "softhca" + std::to_string(ordinal),
                           .interface = interface,
                           .interface_index = 7,
                           .ordinal = ordinal,
                           .guid = 0x0250'56ff'fe01'0203,
                           .loopback = false,
                           .port = {},
                           .gids = {}};
  device.port.state = PortState::Active;
  device.port.gid_table_length = 4;
  device.port.speed_mbps = 100'000;
  device.gids = {{0, wire::Gid::of_ipv4({192, 0, 2, 1})}};
  return device;
}

// Each counter holds a thousand times its place.
SysfsTree tree() {
  return {{eth(0, "eth0"), eth(1, "eth0.5"), eth(10, "lo")}, [](const DeviceDescription&) {
            std::vector<std::uint64_t> counters(trace::kCounterCount);
            for (std::size_t i = 0; i < counters.size(); ++i) counters[i] = 1000 * i;
            return counters;
          }};
}

std::string file(std::string_view path) {
  const SysfsFound found = tree().find(path, true);
  return found.kind == SysfsKind::File ? found.text : "no file";
}

TEST(LinkRate, IsToldInTheKernelsWords) {
  EXPECT_EQ(link_rate_text(link_rate(0)), "2.5 Gb/sec (1X)");
  EXPECT_EQ(link_rate_text(link_rate(10'000)), "10 Gb/sec (1X FDR10)");
  EXPECT_EQ(link_rate_text(link_rate(50'000)), "50 Gb/sec (2X EDR)");
  EXPECT_EQ(link_rate_text(link_rate(100'000)), "100 Gb/sec (4X EDR)");
  EXPECT_EQ(link_rate_text(link_rate(5'000'000)), "800 Gb/sec (4X XDR)");
}

TEST(SysfsTree, ListsEveryFolder) {
  EXPECT_EQ(tree().find("", true).text, "dsofthca0\ndsofthca1\ndsofthca10\n");
  EXPECT_EQ(tree().find("softhca1/device", true).text, "dnet\nfnuma_node\n");
  EXPECT_EQ(tree().find("softhca1/device/net", true).text, "leth0.5\n");
  EXPECT_EQ(tree().find("softhca0/ports/1/gids", true).text, "f0\nf1\nf2\nf3\n");
  EXPECT_EQ(tree().find("softhca0/ports/1/gid_attrs/types", true).text, "f0\n");
}

TEST(SysfsTree, SaysWhatQueriesAnswer) {
  EXPECT_EQ(file("softhca0/node_type"), "1: CA\n");
  EXPECT_EQ(file("softhca0/node_guid"), "0250:56ff:fe01:0203\n");
  EXPECT_EQ(file("softhca0/ports/1/state"), "4: ACTIVE\n");
  EXPECT_EQ(file("softhca0/ports/1/phys_state"), "5: LinkUp\n");
  EXPECT_EQ(file("softhca0/ports/1/rate"), "100 Gb/sec (4X EDR)\n");
  EXPECT_EQ(file("softhca0/ports/1/cap_mask"), "0x04000000\n");
  EXPECT_EQ(file("softhca0/ports/1/pkeys/0"), "0xffff\n");
  EXPECT_EQ(file("softhca0/ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:c000:0201\n");
  EXPECT_EQ(file("softhca0/ports/1/gids/3"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
  EXPECT_EQ(file("softhca0/ports/1/gid_attrs/types/0"), "RoCE v2\n");
  EXPECT_EQ(file("softhca1/ports/1/gid_attrs/ndevs/0"), "eth0.5\n");
}

TEST(SysfsTree, CountsInTheKernelsUnits) {
  const auto place = [](trace::Counter counter) { return 1000 * static_cast<int>(counter); };
  EXPECT_EQ(file("softhca0/ports/1/counters/port_xmit_packets"),
            std::to_string(place(trace::Counter::PacketsSent)) + "\n");
  EXPECT_EQ(file("softhca0/ports/1/counters/port_xmit_data"),
            std::to_string(place(trace::Counter::PacketBytesSent) / 4) + "\n");
  EXPECT_EQ(
      file("softhca0/ports/1/counters/port_rcv_errors"),
      std::to_string(place(trace::Counter::PacketsMalformed) + place(trace::Counter::IcrcErrors)) +
          "\n");
  EXPECT_EQ(file("softhca0/ports/1/hw_counters/out_of_sequence"),
            std::to_string(place(trace::Counter::OutOfOrder)) + "\n");
}

TEST(SysfsTree, CountsNothingWhereNobodyHasTheDeviceOpen) {
  const SysfsTree closed({eth(0, "eth0")},
                         [](const DeviceDescription&) { return std::vector<std::uint64_t>{}; });
  EXPECT_EQ(closed.find("softhca0/ports/1/counters/port_rcv_data", true).text, "0\n");
  const SysfsFound unread = closed.find("softhca0/ports/1/counters/port_rcv_data", true, false);
  EXPECT_EQ(unread.kind, SysfsKind::File);
  EXPECT_EQ(unread.text, "");
  EXPECT_EQ(closed.find("softhca0/node_type", true, false).text, "1: CA\n");
}

TEST(SysfsTree, GoesByDotsAndSlashes) {
  const SysfsFound found = tree().find("//softhca0/./ports/../ports//1/", true);
  EXPECT_EQ(found.kind, SysfsKind::Folder);
  EXPECT_EQ(found.place, "softhca0/ports/1");
}

TEST(SysfsTree, LeavesByLinksAndUpwards) {
  const SysfsFound link = tree().find("softhca0/device/net/eth0", false);
  EXPECT_EQ(link.kind, SysfsKind::Link);
  EXPECT_EQ(link.text, "/sys/class/net/eth0");
  const SysfsFound followed = tree().find("softhca0/device/net/eth0", true);
  EXPECT_EQ(followed.kind, SysfsKind::Elsewhere);
  EXPECT_EQ(followed.text, "/sys/class/net/eth0");
  EXPECT_EQ(tree().find("softhca0/device/net/eth0/mtu", false).text, "/sys/class/net/eth0/mtu");
  EXPECT_EQ(tree().find("softhca0/../../net/lo", false).text, "/sys/class/net/lo");
}

TEST(SysfsTree, WritesDownAllThatStaysAsItIs) {
  bool link = false, port = false;
  for (const SysfsFound& found : tree().fixed()) {
    EXPECT_EQ(found.place.find("counters"), std::string::npos);
    EXPECT_EQ(tree().find(found.place, false).text, found.text);
    link = link || found.kind == SysfsKind::Link;
    port = port || found.place == "softhca10/ports/1/state";
  }
  EXPECT_TRUE(link && port);
}

TEST(SysfsTree, DoesNotFindWhatIsNotThere) {
  EXPECT_EQ(tree().find("mlx5_0", true).kind, SysfsKind::Absent);
  EXPECT_EQ(tree().find("softhca0/ports/2", true).kind, SysfsKind::Absent);
  EXPECT_EQ(tree().find("softhca0/ports/1/hw_counters/out_of_buffer", true).kind,
            SysfsKind::Absent);
  EXPECT_EQ(tree().find("softhca0/node_type/x", true).kind, SysfsKind::NotFolder);
  EXPECT_EQ(tree().find("softhca0/node_type/", true).kind, SysfsKind::NotFolder);
}

}  // namespace
}  // namespace softhca::driver
