#include "os/host_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "os/self.h"

namespace softhca::os {
namespace {

std::string own_name(const char* what) {
  return "softhca-test/" + std::to_string(own_pid()) + "/" + what;
}

TEST(HostName, HasOneHolderAtATime) {
  auto holder = HostName::take(own_name("one"));
  ASSERT_TRUE(holder);
  const auto second = HostName::take(own_name("one"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().number, EADDRINUSE);
  holder->release();
  EXPECT_FALSE(holder->is_held());
  EXPECT_TRUE(HostName::take(own_name("one")));
}

TEST(HostName, MayBeAsLongAsLinuxAllows) {
  const std::string longest = own_name("") + std::string(kMaxHostName - own_name("").size(), 'x');
  auto holder = HostName::take(longest);
  ASSERT_TRUE(holder) << error_text(holder.error());
  EXPECT_EQ(host_names(longest), std::vector<std::string>{longest});
}

TEST(HostName, IsListedByItsPrefix) {
  auto a = HostName::take(own_name("list/a"));
  auto b = HostName::take(own_name("list/b"));
  auto c = HostName::take(own_name("lost/c"));
  ASSERT_TRUE(a && b && c);
  auto names = host_names(own_name("list/"));
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{own_name("list/a"), own_name("list/b")}));
}

}  // namespace
}  // namespace softhca::os
