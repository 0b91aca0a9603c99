#include "wire/gid.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace softhca::wire {
namespace {

Gid gid_of(std::string_view text) {
  const auto gid = Gid::parse(text);
  EXPECT_TRUE(gid) << text;
  return gid.value_or(Gid{});
}

TEST(Gid, PrintsIpv6AsRfc5952Says) {
  // Input, and what it prints as: the examples of RFC 5952, sections 2 and 4, among them.
  constexpr std::pair<const char*, const char*> kCases[] = {
      {"2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"},  // the first of equally long runs
      {"2001:0db8::0001", "2001:db8::1"},
      {"2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"},  // a single group is not shortened
      {"2001:DB8::AbC", "2001:db8::abc"},
      {"2001:0:0:1:0:0:0:1", "2001:0:0:1::1"},  // the longest run
      {"0:0:0:0:0:0:0:0", "::"},
      {"::1", "::1"},
      {"1::", "1::"},
      {"1:0:0:0:0:0:0:8", "1::8"},
      {"1:2:3:4:5:6::", "1:2:3:4:5:6::"},
      {"1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"},
      {"::2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8"},
      {"fe80::5054:ff:fe12:3456", "fe80::5054:ff:fe12:3456"},
      {"64:ff9b::192.0.2.33", "64:ff9b::c000:221"},
      {"1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:102:304"},
      {"fd77::2", "fd77::2"},
  };
  for (const auto& [text, printed] : kCases) {
    EXPECT_EQ(address_text(gid_of(text)), printed);
    EXPECT_EQ(gid_text(gid_of(text)), printed);
  }
}

TEST(Gid, OfIpv4IsTheMappedAddress) {
  const Gid gid = Gid::of_ipv4({192, 0, 2, 1});
  EXPECT_EQ(gid_of("192.0.2.1"), gid);
  EXPECT_EQ(gid_of("::ffff:192.0.2.1"), gid);
  EXPECT_EQ(gid_of("::FFFF:c000:201"), gid);
  EXPECT_EQ(address_text(gid), "192.0.2.1");
  EXPECT_EQ(gid_text(gid), "::ffff:192.0.2.1");
  EXPECT_TRUE(gid.is_ipv4());
  EXPECT_FALSE(gid_of("::fffe:192.0.2.1").is_ipv4());
  EXPECT_EQ(address_text(gid_of("255.0.0.255")), "255.0.0.255");
}

TEST(Gid, KnowsLinkLocalAndZero) {
  EXPECT_TRUE(gid_of("fe80::1").is_link_local());
  EXPECT_TRUE(gid_of("febf::1").is_link_local());
  EXPECT_FALSE(gid_of("fec0::1").is_link_local());
  EXPECT_TRUE(gid_of("::").is_zero());
  EXPECT_FALSE(gid_of("::1").is_zero());
}

TEST(Gid, RefusesWhatIsNoAddress) {
  for (const char* text : {"",
                           ":",
                           ":::",
                           "1",
                           "1:2",
                           "1:2:3:4:5:6:7",
                           "1:2:3:4:5:6:7:8:9",
                           "1::2::3",
                           ":1::2",
                           "1::2:",
                           "1:2:3:4:5:6:7:",
                           ":1:2:3:4:5:6:7",
                           "1:2:3:4::5:6:7:8",
                           "1:2:3:4:5:6:7:8::",
                           "12345::",
                           "g::",
                           "::-1",
                           "::+1",
                           "::0x1",
                           " ::1",
                           "::1 ",
                           "fe80::1%eth0",
                           "1.2.3",
                           "1.2.3.4.5",
                           "1.2.3.256",
                           "1.2.3.04",
                           "00.0.0.1",
                           "1..2.3",
                           "1.2.3.",
                           ".1.2.3",
                           "1.2.3.4 ",
                           "1.2.3.-4",
                           "1.2.3.4::",
                           "::1.2.3.4:5",
                           "::1.2.3",
                           "1:2:3:4:5:6:7:1.2.3.4",
                           "1:2:3:4:5:1.2.3.4",
                           "1.2.3.99999999999999999999",
                           "::ffff:1.2.3.400"})
    EXPECT_FALSE(Gid::parse(text)) << text;
}

TEST(Gid, ParsesWhatItPrints) {
  Prng prng(2);
  for (int i = 0; i < 20'000; ++i) {
    Gid gid;
    // Mostly zero groups, so that runs of every length and place come up.
    for (std::size_t group = 0; group < 8; ++group) {
      if (prng.chance(2, 3)) continue;
      const std::uint64_t bits = prng.next() >> prng.below(64);
      gid.bytes[2 * group] = static_cast<std::uint8_t>(bits >> 8);
      gid.bytes[2 * group + 1] = static_cast<std::uint8_t>(bits);
    }
    if (prng.chance(1, 10)) gid.bytes[10] = gid.bytes[11] = 0xff;
    ASSERT_EQ(Gid::parse(address_text(gid)), gid) << address_text(gid);
    ASSERT_EQ(Gid::parse(gid_text(gid)), gid) << gid_text(gid);
  }
}

}  // namespace
}  // namespace softhca::wire
