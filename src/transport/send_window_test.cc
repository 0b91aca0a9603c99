#include "transport/send_window.h"

#include <gtest/gtest.h>

namespace softhca::transport {
namespace {

TEST(SendWindow, DoublesWhileAllArrives) {
  SendWindow window(4096);
  ASSERT_EQ(window.packets(), SendWindow::kLeast);
  window.on_progress(64);
  EXPECT_EQ(window.packets(), 128u);
  window.on_progress(128);
  EXPECT_EQ(window.packets(), 256u);
  window.on_progress(256);
  EXPECT_EQ(window.packets(), 256u) << "a MiB of the largest packets";
}

TEST(SendWindow, HoldsAsManyBytesWhateverThePacketsAre) {
  for (const std::uint32_t mtu : {256u, 1024u, 2048u}) {
    SendWindow window(mtu);
    window.on_progress(1 << 20);
    EXPECT_EQ(window.packets() * mtu, SendWindow::kMostBytes);
  }
}

TEST(SendWindow, HalvesAtALossAndGrowsByAPacketForEachWindowThatArrives) {
  SendWindow window(1024);
  window.on_progress(400);
  ASSERT_EQ(window.packets(), 464u);
  window.on_loss();
  EXPECT_EQ(window.packets(), 232u);
  window.on_progress(231);
  EXPECT_EQ(window.packets(), 232u);
  window.on_progress(1);
  EXPECT_EQ(window.packets(), 233u);
}

TEST(SendWindow, NeverFallsBelowWhatItBeganWith) {
  SendWindow window(1024);
  for (int i = 0; i < 5; ++i) window.on_loss();
  EXPECT_EQ(window.packets(), SendWindow::kLeast);
}

}  // namespace
}  // namespace softhca::transport
