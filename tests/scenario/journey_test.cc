// The journey: what is told follows from what happened. Each test changes one thing and sees the
// story change accordingly; every failure ends in the statuses and fault reasons of the standards.
#include "sim/journey.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "base/sanitized.h"
#include "sim/transfer.h"
#include "sim/wrong.h"

namespace softhca::sim {
namespace {

using trace::ReasonId;
using transport::Status;

Story told(const JourneySettings& settings) {
  auto story = tell_journey(settings);
  EXPECT_TRUE(story) << (story ? "" : story.error());
  return story ? std::move(*story) : Story{};
}

// The step of that title at that host.
Step step_of(const Story& story, const std::string& title, const std::string& host) {
  for (const Step& step : story.steps)
    if (step.title == title && step.host == host) return step;
  ADD_FAILURE() << "no step " << title << " at the " << host;
  return {};
}

std::string text_of(const Step& step) {
  std::string text = step.told;
  for (const Fact& fact : step.facts) text += "\n" + fact.name + ": " + fact.value;
  for (const std::string& detail : step.details) text += "\n" + detail;
  return text;
}

bool says(const Step& step, const std::string& what) {
  return text_of(step).find(what) != std::string::npos;
}

std::uint64_t row(const Story& story, const std::string& name, std::size_t host) {
  for (const LedgerRow& r : story.ledger)
    if (r.name == name) return r.rdma[host];
  ADD_FAILURE() << "no row " << name;
  return 0;
}

// From "2,049 leaf entries in 8 tables".
std::uint64_t leaves(const Story& story) {
  for (const std::string& detail : step_of(story, "IOMMU", "client").details)
    if (const auto at = detail.find(" leaf entr"); at != std::string::npos) {
      std::string digits = detail.substr(0, at);
      std::erase(digits, ',');
      return std::stoull(digits);
    }
  return 0;
}

TEST(Journey, HasTheStepsOfTheChainInTheirOrderAndMirrored) {
  const std::vector<std::string> down = {"Application", "Allocate memory", "Virtual address",
                                         "MMU",         "Physical memory", "Register buffer",
                                         "Pin",         "IOMMU",           "NIC DMA engine",
                                         "PCIe",        "Ethernet"};
  const Story story = told({});
  ASSERT_EQ(story.steps.size(), 2 * down.size());
  for (std::size_t i = 0; i < down.size(); ++i) {
    EXPECT_EQ(story.steps[i].title, down[i]);
    EXPECT_EQ(story.steps[i].host, "client");
    EXPECT_EQ(story.steps[story.steps.size() - 1 - i].title, down[i]);
    EXPECT_EQ(story.steps[story.steps.size() - 1 - i].host, "server");
  }
  EXPECT_TRUE(story.came_out_right);
}

TEST(Journey, ComesOutRightWhateverIsAskedFor) {
  for (const Operation operation : {Operation::Write, Operation::Read, Operation::Send})
    for (const IommuChoice iommu :
         {IommuChoice::On, IommuChoice::Deferred, IommuChoice::PassThrough, IommuChoice::Off})
      for (const bool gpu : {false, true})
        for (const std::uint64_t bytes : {1u, 4096u, 70'000u}) {
          if (kSanitized && bytes == 4096) continue;
          JourneySettings settings;
          settings.operation = operation;
          settings.iommu = iommu;
          settings.gpu = gpu;
          settings.bytes = bytes;
          settings.sockets = !gpu;
          EXPECT_TRUE(told(settings).came_out_right)
              << static_cast<int>(operation) << static_cast<int>(iommu) << gpu << " " << bytes;
        }
}

TEST(Journey, TheSizeDecidesOverPagesPacketsAndTlps) {
  JourneySettings settings;
  settings.bytes = 4096;
  settings.offset = 0;
  const Story small = told(settings);
  EXPECT_EQ(row(small, "Ethernet packets sent", 0), 1u);
  EXPECT_EQ(row(small, "bytes written by DMA", 1), 4096u);
  EXPECT_TRUE(says(step_of(small, "Allocate memory", "client"), "1 page of 4 KiB"));
  settings.bytes = 40'960;
  const Story large = told(settings);
  EXPECT_EQ(row(large, "Ethernet packets sent", 0), 10u);
  EXPECT_EQ(row(large, "bytes written by DMA", 1), 40'960u);
  EXPECT_EQ(row(large, "PCIe: writes", 1), 10 * row(small, "PCIe: writes", 1));
  EXPECT_TRUE(says(step_of(large, "Allocate memory", "client"), "10 pages of 4 KiB"));
  EXPECT_TRUE(says(step_of(large, "Ethernet", "client"), "10 packets"));
}

TEST(Journey, TheOffsetDecidesOverTheAddressAndItsPages) {
  JourneySettings settings;
  settings.bytes = 8192;
  settings.offset = 0;
  EXPECT_TRUE(says(step_of(told(settings), "Allocate memory", "client"), "2 pages"));
  settings.offset = 0xabc;
  const Story story = told(settings);
  EXPECT_TRUE(says(step_of(story, "Allocate memory", "client"), "3 pages"));
  EXPECT_TRUE(says(step_of(story, "Virtual address", "client"), "offset 0xabc"));
}

TEST(Journey, TheSizeOfPagesDecidesOverWalksAndLeaves) {
  JourneySettings settings;
  settings.bytes = 8 << 20;
  const Story small = told(settings);
  settings.page_bytes = kPage2M;
  const Story large = told(settings);
  EXPECT_TRUE(says(step_of(small, "MMU", "client"), "2,049 page faults"));
  EXPECT_TRUE(says(step_of(large, "MMU", "client"), "5 page faults"));
  EXPECT_TRUE(says(step_of(small, "Virtual address", "client"), ", PT "));
  EXPECT_FALSE(says(step_of(large, "Virtual address", "client"), ", PT "));
  EXPECT_GT(row(small, "IOTLB misses", 0), row(large, "IOTLB misses", 0));
  EXPECT_EQ(leaves(small), 2049u);
  EXPECT_EQ(leaves(large), 5u);
}

TEST(Journey, FragmentationDecidesOverThePiecesOfRam) {
  JourneySettings settings;
  settings.bytes = 64 * kPage4K;
  settings.fragmentation = 0;
  EXPECT_TRUE(says(step_of(told(settings), "Physical memory", "client"), "one piece of RAM"));
  settings.fragmentation = 100;
  EXPECT_TRUE(says(step_of(told(settings), "Physical memory", "client"), "pieces of RAM"));
}

TEST(Journey, TheIommuIsToldAsItIs) {
  JourneySettings settings;
  EXPECT_TRUE(says(step_of(told(settings), "IOMMU", "client"), "addresses of its own"));
  settings.iommu = IommuChoice::Off;
  const Story off = told(settings);
  EXPECT_TRUE(says(step_of(off, "IOMMU", "client"), "There is none"));
  settings.iommu = IommuChoice::PassThrough;
  EXPECT_TRUE(says(step_of(told(settings), "IOMMU", "client"), "pass-through"));
  settings.iommu = IommuChoice::Deferred;
  EXPECT_TRUE(says(step_of(told(settings), "IOMMU", "client"), "deferred"));
  EXPECT_EQ(row(off, "IOTLB hits", 1) + row(off, "IOTLB misses", 1), 0u);
}

TEST(Journey, GpuMemoryIsReachedThroughTheRootComplexOrPastIt) {
  JourneySettings settings;
  settings.gpu = true;
  const Story redirected = told(settings);
  EXPECT_TRUE(says(step_of(redirected, "Physical memory", "server"), "BAR 1"));
  EXPECT_TRUE(says(step_of(redirected, "PCIe", "server"), "ACS redirect"));
  EXPECT_GT(row(redirected, "IOTLB misses", 1), 0u);
  settings.acs_redirect = false;
  const Story direct = told(settings);
  EXPECT_TRUE(says(step_of(direct, "PCIe", "server"), "straight to the GPU"));
  EXPECT_TRUE(says(step_of(direct, "IOMMU", "server"), "is not asked for the buffer"));
  settings.acs_redirect = true;
  settings.iommu = IommuChoice::Off;
  EXPECT_TRUE(says(step_of(told(settings), "IOMMU", "server"), "There is none"));
  EXPECT_LT(direct.took, redirected.took);
}

TEST(Journey, APinnedPageResistsTheKernel) {
  const Step pin = step_of(told({}), "Pin", "client");
  EXPECT_TRUE(says(pin, "refused, pinned"));
  EXPECT_TRUE(says(pin, "frame_kept"));
}

TEST(Journey, OnlySocketsCopyByCpuCallTheKernelAndInterrupt) {
  JourneySettings settings;
  settings.sockets = true;
  const Story story = told(settings);
  for (const LedgerRow& r : story.ledger) {
    if (r.name == "bytes copied by a CPU") {
      EXPECT_EQ(r.rdma, (std::array<std::uint64_t, 2>{0, 0}));
      EXPECT_EQ(r.sockets, (std::array<std::uint64_t, 2>{settings.bytes, settings.bytes}));
    } else if (r.name == "system calls") {
      EXPECT_EQ(r.rdma[0] + r.rdma[1], 0u);
      EXPECT_GE(r.sockets[0], 1u);
      EXPECT_GE(r.sockets[1], 1u);
    } else if (r.name == "interrupts") {
      EXPECT_EQ(r.rdma[1], 0u);
      EXPECT_GE(r.sockets[1], 1u);
    }
  }
}

TEST(Journey, ComparesManyTransfersEachWay) {
  JourneySettings settings;
  settings.compare = 50;
  const Story story = told(settings);
  ASSERT_EQ(story.ways.size(), 2u);
  EXPECT_EQ(story.ways[0].cpu_copy_bytes, 0u);
  EXPECT_EQ(story.ways[1].cpu_copy_bytes, 2 * settings.bytes);
  EXPECT_EQ(story.ways[1].interrupts, 50u);
  EXPECT_LT(story.ways[0].latency_p50, story.ways[1].latency_p50);
  EXPECT_LE(story.ways[1].latency_p50, story.ways[1].latency_p99);
  EXPECT_FALSE(story.citations.empty());
}

TEST(Journey, TheSameSeedTellsTheSameAndAnotherSeedAnother) {
  JourneySettings settings;
  const Story first = told(settings);
  EXPECT_NE(first.journal_hash, 0u);
  EXPECT_EQ(first.journal_hash, told(settings).journal_hash);
  settings.seed = 2;
  EXPECT_NE(first.journal_hash, told(settings).journal_hash);
}

// What each failure has to come to: MECHANISMS by the standards named in sim/wrong.h. A second
// table, on purpose, so that neither can go wrong alone.
struct Expected {
  std::string name;
  int status;  // -1: no completion
  std::string seen_by;
  std::string sees;
};

class WrongTest : public ::testing::TestWithParam<Expected> {};

TEST_P(WrongTest, EndsAsTheStandardsSay) {
  const Expected& expected = GetParam();
  JourneySettings settings;
  settings.wrong = expected.name;
  const Story story = told(settings);
  EXPECT_TRUE(story.came_out_right);
  std::string application, seen;
  for (const View& view : story.views) {
    if (view.who == "application, client") application = view.sees;
    if (view.who == expected.seen_by) seen = view.sees;
  }
  const std::string status = "(status " + std::to_string(expected.status) + ")";
  if (expected.status >= 0)
    EXPECT_NE(application.find(status), std::string::npos) << application;
  else
    EXPECT_EQ(application.find("(status"), std::string::npos) << application;
  EXPECT_NE(seen.find(expected.sees), std::string::npos) << expected.seen_by << ": " << seen;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WrongTest,
    ::testing::Values(Expected{"not-registered", 4, "NIC, client", "key_unknown"},
                      Expected{"past-the-end", 10, "NIC, server", "out_of_bounds"},
                      Expected{"missing-right", 10, "NIC, server", "right_missing"},
                      Expected{"wrong-key", 10, "NIC, server", "key_stale"},
                      Expected{"other-domain", 10, "NIC, server", "key_other_domain"},
                      Expected{"deregistered", 10, "NIC, server", "key_stale"},
                      Expected{"migrated", 0, "kernel, server", "moved the page"},
                      Expected{"reused", 0, "kernel, server", "no program has any more"},
                      Expected{"fork", 0, "application, server", "nothing has arrived"},
                      Expected{"bus-master-off", -1, "NIC, client", "bus_master_off"},
                      Expected{"not-mapped", 11, "IOMMU, server", "[fault reason 0x05]"},
                      Expected{"stale-iotlb", 0, "IOMMU, server", "its IOTLB still knows"},
                      Expected{"wild-address", 0, "IOMMU, server", "there is none"},
                      Expected{"memlock", -1, "application, client", "memlock_exceeded"},
                      Expected{"nowhere", 11, "kernel, server", "two fault records"}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

TEST(Wrong, EveryCaseIsExpectedAboveAndComesOutForOtherSeedsToo) {
  ASSERT_EQ(wrongs().size(), 15u);
  for (const Wrong& wrong : wrongs())
    for (const std::uint64_t seed : {2u, 77u, 4711u}) {
      if (kSanitized && seed != 2) continue;
      JourneySettings settings;
      settings.wrong = wrong.name;
      settings.seed = seed;
      settings.bytes = 30'000;
      settings.offset = 3000;
      EXPECT_TRUE(told(settings).came_out_right) << wrong.name << " seed " << seed;
    }
}

TEST(Wrong, WhatDoesNotFitIsSaidInOneLine) {
  JourneySettings settings;
  settings.wrong = "gremlins";
  const auto unknown = tell_journey(settings);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().find("--wrong list"), std::string::npos);
  for (const Wrong& wrong : wrongs()) {
    JourneySettings other;
    other.wrong = wrong.name;
    other.operation = Operation::Send;
    EXPECT_FALSE(tell_journey(other));
    other.operation = Operation::Write;
    other.gpu = true;
    EXPECT_FALSE(tell_journey(other));
    other.gpu = false;
    other.iommu = IommuChoice::Off;
    EXPECT_FALSE(tell_journey(other));
    other.iommu = IommuChoice::On;
    other.page_bytes = kPage2M;
    EXPECT_FALSE(tell_journey(other));
    other.page_bytes = kPage4K;
    other.acs_redirect = false;
    EXPECT_FALSE(tell_journey(other));
    other.acs_redirect = true;
    other.bytes = 1;
    EXPECT_FALSE(tell_journey(other));
  }
  settings = {};
  settings.acs_redirect = false;
  EXPECT_FALSE(tell_journey(settings));
  settings.gpu = true;
  settings.sockets = true;
  EXPECT_FALSE(tell_journey(settings));
}

// The memory of all others is as it was, in the run in which nothing is broken.
TEST(Transfer, NeighboursAreLeftAlone) {
  JourneySettings settings;
  settings.bytes = 200'000;
  settings.fragmentation = 100;
  Transfer transfer(settings);
  ASSERT_TRUE(transfer.prepare());
  transfer.post_and_finish();
  ASSERT_TRUE(transfer.moved_all());
  Host& host = *transfer.server.host;
  for (const Transfer::Neighbour& neighbour : transfer.neighbours) {
    host.run(neighbour.pid);
    EXPECT_TRUE(std::ranges::all_of(host.load(neighbour.start, neighbour.bytes),
                                    [&](std::byte b) { return b == neighbour.filled_with; }));
  }
}

}  // namespace
}  // namespace softhca::sim
