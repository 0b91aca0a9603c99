#include "cli/doctor_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

namespace softhca::cli {
namespace {

driver::DeviceDescription device_on(std::string interface, driver::PortState state) {
  driver::DeviceDescription device;
  device.name = "softhca0";
  device.interface = std::move(interface);
  device.port.state = state;
  device.port.interface_mtu = 1500;
  device.port.active_mtu = 1024;
  if (state == driver::PortState::Down) device.port.down = {.id = trace::ReasonId::PortDown};
  device.gids = {{0, wire::Gid::of_ipv4({192, 0, 2, 1})}};
  return device;
}

os::Interface interface_named(std::string name, bool up, bool loopback = false) {
  os::Interface one;
  one.name = std::move(name);
  one.up = up;
  one.loopback = loopback;
  return one;
}

std::size_t problems(const Findings& findings) {
  for (const Finding& one : findings)
    EXPECT_TRUE(one.level != Level::Problem || !one.remedy.empty()) << one.text;
  return static_cast<std::size_t>(std::ranges::count(findings, Level::Problem, &Finding::level));
}

constexpr auto kActive = driver::PortState::Active;
constexpr auto kDown = driver::PortState::Down;

TEST(DoctorChecks, AFreePortIsFine) {
  const Findings found = check_port({});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].level, Level::Ok);
}

TEST(DoctorChecks, NamesWhoHoldsThePortAtEachAddress) {
  const Findings found = check_port({{"0.0.0.0", 1000, false, {{42, "nc", false}}},
                                     {"192.0.2.1", 0, true, {}},
                                     {"192.0.2.2", 7, false, {}},
                                     {"127.0.0.1", 1000, false, {{43, "ib_send_lat", true}}}});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(problems(found), 3u);
  EXPECT_NE(found[0].text.find("0.0.0.0 by pid 42 (nc), uid 1000"), std::string::npos);
  EXPECT_NE(found[0].remedy.find("kill 42"), std::string::npos);
  EXPECT_NE(found[1].remedy.find("rdma_rxe"), std::string::npos);
  EXPECT_NE(found[2].text.find("uid 7"), std::string::npos);
  EXPECT_EQ(found[3].level, Level::Ok);
}

TEST(DoctorChecks, APortSharedWithAStrangerIsAProblem) {
  EXPECT_EQ(problems(check_port({{"0.0.0.0", 0, false, {{1, "a", true}, {2, "b", false}}}})), 1u);
}

TEST(DoctorChecks, SaysThatThisUserWouldLodgeWithAnother) {
  for (const std::vector<PortOwner>& seen :
       {std::vector<PortOwner>{}, std::vector<PortOwner>{{43, "ib_send_lat", true}}}) {
    const Findings found = check_port({{"192.0.2.1", 1001, false, seen, true}});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].level, Level::Ok);
    EXPECT_NE(found[0].text.find("192.0.2.1 by SoftHCA of uid 1001: programs of this user lodge"),
              std::string::npos);
  }
}

TEST(DoctorChecks, ADeviceThatIsDownIsAProblemOnlyIfNoneWorks) {
  const std::vector<os::Interface> interfaces = {interface_named("eth0", false),
                                                 interface_named("eth1", true)};
  const auto down = device_on("eth0", kDown);
  const Findings alone = check_devices({down}, interfaces, std::nullopt);
  ASSERT_EQ(problems(alone), 1u);
  EXPECT_EQ(alone[0].remedy, "ip link set dev eth0 up");
  EXPECT_EQ(problems(check_devices({down, device_on("eth1", kActive)}, interfaces, std::nullopt)),
            0u);
  EXPECT_EQ(problems(check_devices({}, interfaces, std::nullopt)), 1u);
}

TEST(DoctorChecks, TellsWhatADeviceThatIsDownIsLacking) {
  auto device = device_on("eth0", kDown);
  auto interface = interface_named("eth0", true);
  EXPECT_NE(why_down(device, {interface}).reason.find("carrier"), std::string::npos);
  interface.running = true;
  device.gids.clear();
  EXPECT_NE(why_down(device, {interface}).remedy.find("ip address add"), std::string::npos);
  EXPECT_NE(why_down(device, {}).reason.find("gone"), std::string::npos);
}

TEST(DoctorChecks, FindsTheFirstNameOfAListThatNoInterfaceHas) {
  const std::vector<os::Interface> interfaces = {interface_named("lo", true, true),
                                                 interface_named("eth0", true)};
  EXPECT_EQ(first_missing("lo,eth0", interfaces), std::nullopt);
  EXPECT_EQ(first_missing("lo,eth9,eth8", interfaces), "eth9");
  EXPECT_EQ(names_of(interfaces), "lo, eth0");
  EXPECT_EQ(names_of({}), "none");
}

TEST(DoctorChecks, TellsTheGidOfADeviceThatWorks) {
  const Findings found = check_devices({device_on("eth0", kActive)}, {}, std::nullopt);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("ACTIVE, MTU 1500 (path MTU 1024), GID 0 ::ffff:192.0.2.1"),
            std::string::npos)
      << found[0].text;
}

TEST(DoctorChecks, ANetdevThatDoesNotExistIsAProblemThatListsThoseThatDo) {
  const std::vector<os::Interface> interfaces = {interface_named("lo", true, true),
                                                 interface_named("eth0", true)};
  const Findings found = check_devices({device_on("eth0", kActive)}, interfaces, "eth9");
  EXPECT_EQ(problems(found), 1u);
  EXPECT_NE(found[0].remedy.find("lo, eth0"), std::string::npos);
  EXPECT_EQ(problems(check_devices({device_on("eth0", kActive)}, interfaces, "eth0")), 0u);
}

TEST(DoctorChecks, ALoopbackThatIsDownHasARemedy) {
  const Findings found = check_devices({device_on("eth0", kActive)},
                                       {interface_named("lo", false, true)}, std::nullopt);
  EXPECT_EQ(found.back().level, Level::Note);
  EXPECT_EQ(found.back().remedy, "ip link set dev lo up");
}

TEST(DoctorChecks, ExplainsAMemlockLimitInBothModes) {
  const auto memlock = [](std::uint64_t bytes) {
    return check_pins({os::PinBackend::IoUring, "", bytes})[1];
  };
  EXPECT_EQ(memlock(UINT64_MAX).level, Level::Ok);
  EXPECT_EQ(memlock(std::uint64_t{1} << 30).level, Level::Ok);
  const Finding small = memlock(8 << 20);
  EXPECT_EQ(small.level, Level::Note);
  EXPECT_NE(small.text.find("8 MiB"), std::string::npos);
  EXPECT_NE(small.text.find("strict"), std::string::npos);
  EXPECT_NE(small.remedy.find("ulimit -l"), std::string::npos);
}

TEST(DoctorChecks, SaysWhyABetterPinIsNotTaken) {
  EXPECT_EQ(check_pins({os::PinBackend::IoUring, "", 0})[0].level, Level::Ok);
  for (const auto backend : {os::PinBackend::Mlock, os::PinBackend::Counted}) {
    const Finding pin = check_pins({backend, "seccomp", 0})[0];
    EXPECT_EQ(pin.level, Level::Note);
    EXPECT_NE(pin.text.find("(seccomp)"), std::string::npos);
  }
}

TEST(DoctorChecks, CopyingWithoutAnyMeansIsAProblem) {
  os::KernelFeatures kernel;
  EXPECT_EQ(check_copying(os::CopyMethod::ProcessVm, kernel)[0].level, Level::Ok);
  kernel.process_vm = {EPERM};
  const Finding pipe = check_copying(os::CopyMethod::Pipe, kernel)[0];
  EXPECT_EQ(pipe.level, Level::Note);
  EXPECT_NE(pipe.text.find("Operation not permitted"), std::string::npos);
  EXPECT_EQ(problems(check_copying(std::nullopt, kernel)), 1u);
}

TEST(DoctorChecks, ChecksumsByTheLibraryThatIsThere) {
  EXPECT_EQ(check_checksums(true)[0].level, Level::Ok);
  const Finding slower = check_checksums(false)[0];
  EXPECT_EQ(slower.level, Level::Note);
  EXPECT_NE(slower.remedy.find("libisal2"), std::string::npos);
}

TEST(DoctorChecks, NotesWhatAnOlderKernelLacks) {
  os::KernelFeatures kernel{.release = "5.4",
                            .io_uring = {},
                            .process_vm = {},
                            .pidfd = {ENOSYS},
                            .madv_populate = {EINVAL}};
  const Findings found = check_kernel(kernel);
  EXPECT_NE(found[0].text.find("5.4"), std::string::npos);
  EXPECT_EQ(problems(found), 0u);
  EXPECT_EQ(std::ranges::count(found, Level::Note, &Finding::level), 2);
}

TEST(DoctorChecks, NotesContainers) {
  EXPECT_EQ(check_namespaces({})[0].level, Level::Ok);
  os::Namespaces inside;
  inside.in_pid_namespace = true;
  EXPECT_EQ(check_namespaces(inside)[0].level, Level::Note);
}

TEST(DoctorChecks, SayWhatKeepsProcessesOutOfEachOthersMemory) {
  os::KernelFeatures kernel;
  EXPECT_EQ(check_same_host({}, kernel, std::nullopt)[0].level, Level::Ok);
  EXPECT_EQ(check_same_host({}, kernel, "off")[0].level, Level::Note);
  os::Namespaces yama;
  yama.ptrace_scope = 1;
  EXPECT_NE(check_same_host(yama, kernel, "on")[0].remedy.find("ptrace_scope=0"),
            std::string::npos);
  EXPECT_EQ(check_same_host(yama, kernel, "direct").size(), 2u);
  kernel.process_vm = {.error = 1};
  EXPECT_NE(check_same_host({}, kernel, std::nullopt)[0].remedy.find("seccomp"), std::string::npos);
}

TEST(DoctorChecks, SayWhetherMemoryCanBeMovedUnderThreads) {
  EXPECT_EQ(check_frames(true, "frames")[0].level, Level::Ok);
  EXPECT_EQ(check_frames(false, std::nullopt)[0].level, Level::Ok);
  EXPECT_EQ(check_frames(false, "frames")[0].level, Level::Note);
  EXPECT_NE(check_frames(false, "frames")[0].remedy.find("userfaultfd"), std::string::npos);
}

TEST(DoctorChecks, NotesSmallSocketBuffers) {
  const Findings found =
      check_socket_buffers({.receive_buffer_max_bytes = 212992, .send_buffer_max_bytes = 4 << 20});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].level, Level::Note);
  EXPECT_NE(found[0].remedy.find("net.core.rmem_max"), std::string::npos);
  EXPECT_EQ(found[1].level, Level::Ok);
}

TEST(DoctorChecks, TellsHowProgramsFindTheFilesOfADevice) {
  const Findings both = check_sysfs({"/s/softhca-sysfs.so", "", {}});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].level, Level::Ok);
  EXPECT_NE(both[0].text.find("preloads /s/softhca-sysfs.so"), std::string::npos);
  EXPECT_NE(both[1].text.find("can mount"), std::string::npos);

  const Findings none = check_sysfs({"/s/softhca-sysfs.so", "SOFTHCA_SYSFS says so", {EPERM}});
  EXPECT_EQ(none[0].level, Level::Note);
  EXPECT_NE(none[0].remedy.find("--sysfs"), std::string::npos);
  EXPECT_NE(none[1].text.find("not permitted"), std::string::npos);
  EXPECT_NE(none[1].text.find("user namespaces"), std::string::npos);
}

LoadFacts loaded(std::optional<std::string> run, bool ours) {
  LoadFacts load;
  load.program = "p";
  load.file = ProgramFile{.path = "/p", .kind = ProgramKind::Dynamic, .interpreter = "/ld.so"};
  load.verbs_plain = "/usr/lib/libibverbs.so.1";
  load.verbs_run = std::move(run);
  load.run_is_ours = ours;
  return load;
}

TEST(DoctorChecks, TellsWhichVerbsLibraryAProgramReallyLoads) {
  const Findings good = check_loading(loaded("/s/lib/libibverbs.so.1", true));
  ASSERT_EQ(good.size(), 1u);
  EXPECT_EQ(good[0].level, Level::Ok);
  EXPECT_NE(good[0].text.find("/usr/lib/libibverbs.so.1"), std::string::npos);
  EXPECT_NE(good[0].text.find("/s/lib/libibverbs.so.1"), std::string::npos);

  const Findings pinned = check_loading(loaded("/opt/rpath/libibverbs.so.1", false));
  EXPECT_EQ(problems(pinned), 1u);
  EXPECT_NE(pinned[0].remedy.find("RPATH"), std::string::npos);

  EXPECT_EQ(check_loading(loaded(std::nullopt, false))[0].level, Level::Note);
}

TEST(DoctorChecks, AProgramThatCannotBeInjectedOrStartedIsAProblem) {
  LoadFacts load = loaded("/s/lib/libibverbs.so.1", true);
  load.unresolved = {"libgone.so is not found"};
  EXPECT_EQ(problems(check_loading(load)), 1u);
  load.file->kind = ProgramKind::Static;
  EXPECT_EQ(problems(check_loading(load)), 1u);
  load.file->kind = ProgramKind::Script;
  EXPECT_EQ(problems(check_loading(load)), 0u);
}

TEST(DoctorChecks, AMissingProgramIsAProblemOnlyIfTheUserNamedIt) {
  LoadFacts load;
  load.program = "p";
  EXPECT_EQ(problems(check_loading(load)), 0u);
  load.asked_for = true;
  EXPECT_EQ(problems(check_loading(load)), 1u);
}

TEST(DoctorChecks, AMissingLibraryNamesWhereItWasLookedFor) {
  const Findings found = check_library(std::nullopt, {"/a/lib", "/b/lib"});
  EXPECT_EQ(problems(found), 1u);
  EXPECT_NE(found[0].text.find("/a/lib, /b/lib"), std::string::npos);
  EXPECT_EQ(problems(check_library("/a/lib", {})), 0u);
}

TEST(DoctorChecks, StockDevicesAreANote) {
  EXPECT_EQ(check_stock_devices({})[0].level, Level::Ok);
  EXPECT_EQ(check_stock_devices({"mlx5_0"})[0].level, Level::Note);
}

TEST(DoctorChecks, GivesSpeedsInTheLargestWholeUnit) {
  EXPECT_EQ(speed_text(0), "");
  EXPECT_EQ(speed_text(100000), "100 Gb/s");
  EXPECT_EQ(speed_text(2500), "2500 Mb/s");
}

}  // namespace
}  // namespace softhca::cli
