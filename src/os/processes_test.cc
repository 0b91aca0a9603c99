#include "os/processes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "os/owned_fd.h"

namespace softhca::os {
namespace {

TEST(Processes, NamesThisProgramAndItsUser) {
  const Pid self = ::getpid();
  EXPECT_TRUE(std::ranges::binary_search(running_programs(), self));
  EXPECT_EQ(program_name(self), "os_test");
  ASSERT_FALSE(command_line(self).empty());
  EXPECT_TRUE(command_line(self)[0].ends_with("os_test"));
  EXPECT_EQ(program_uid(self), ::geteuid());
  EXPECT_TRUE(std::ranges::binary_search(threads_of(self), static_cast<std::uint32_t>(self)));
}

TEST(Processes, SaysNothingOfAProgramThatDoesNotExist) {
  const Pid none = -1;
  EXPECT_EQ(program_name(none), "");
  EXPECT_TRUE(command_line(none).empty());
  EXPECT_TRUE(threads_of(none).empty());
  EXPECT_EQ(program_uid(none), std::nullopt);
  EXPECT_TRUE(open_files(none).empty());
  EXPECT_TRUE(mapped_files(none).empty());
}

TEST(Processes, ListsOpenFilesByNumberAndMappedFilesOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const OwnedFd out(ends[0]), in(ends[1]);
  const auto files = open_files(::getpid());
  const auto found = std::ranges::find(files, out.get(), &OpenFile::fd);
  ASSERT_NE(found, files.end());
  EXPECT_TRUE(found->target.starts_with("pipe:["));

  const auto mapped = mapped_files(::getpid());
  EXPECT_EQ(std::ranges::count_if(mapped, [](auto& f) { return f.ends_with("/os_test"); }), 1);
}

TEST(Processes, ReadsTheKernelsUdpTable) {
  constexpr std::string_view kTable =
      "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode ref pointer drops\n"
      "  219: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 "
      "31337 2 0000000000000000 0\n"
      "  220: 0100007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 "
      "31338 2 0000000000000000 0\n"
      "  221: 000000FD000000000000000002000000:12B7 00000000000000000000000000000000:0000 07 "
      "00000000:00000000 00:00000000 00000000     0        0 7 2 0000000000000000 0\n"
      "  222: zz:12B7 nonsense\n";
  const auto sockets = parse_udp_table(kTable, 4791);
  ASSERT_EQ(sockets.size(), 2u);
  EXPECT_EQ(sockets[0].address, "127.0.0.1");
  EXPECT_EQ(sockets[0].uid, 1000u);
  EXPECT_EQ(sockets[0].inode, 31337u);
  EXPECT_EQ(sockets[1].address, "fd00::2");
  EXPECT_TRUE(parse_udp_table("", 4791).empty());
}

TEST(Processes, FindsTheOwnerOfAUdpPort) {
  const OwnedFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);

  const std::uint16_t port = ntohs(address.sin_port);
  const auto sockets = udp_sockets(port);
  const auto ours = std::ranges::find(sockets, "127.0.0.1", &UdpHolder::address);
  ASSERT_NE(ours, sockets.end());
  EXPECT_EQ(ours->port, port);
  EXPECT_EQ(ours->uid, ::geteuid());
  EXPECT_NE(std::ranges::find(ours->owners, ::getpid()), ours->owners.end());
}

}  // namespace
}  // namespace softhca::os
