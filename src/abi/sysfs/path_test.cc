#include "abi/sysfs/path.h"

#include <gtest/gtest.h>

namespace softhca::abi {
namespace {

TEST(SysfsPath, IsOursFromTheRootOn) {
  EXPECT_STREQ(below_root("/sys/class/infiniband"), "");
  EXPECT_STREQ(below_root("/sys/class/infiniband/"), "/");
  EXPECT_STREQ(below_root("/sys/class/infiniband/softhca0/fw_ver"), "/softhca0/fw_ver");
  for (const char* path : {"/sys/class/infiniband_verbs", "/sys/class/infiniban", "/sys/class", "",
                           "sys/class/infiniband", "/etc/passwd"})
    EXPECT_EQ(below_root(path), nullptr) << path;
  EXPECT_EQ(below_root(nullptr), nullptr);
}

const char* place(std::string link) {
  static std::string text;
  text = std::move(link);
  return place_in_link(text.data());
}

TEST(SysfsPath, KnowsADescriptorByItsName) {
  EXPECT_STREQ(place("/memfd:softhca-sysfs:softhca0/ports (deleted)"), "softhca0/ports");
  EXPECT_STREQ(place("/memfd:softhca-sysfs: (deleted)"), "");
  for (const char* link : {"/memfd:softhca:softhca0 (deleted)", "/tmp/softhca-sysfs:x (deleted)",
                           "/memfd:softhca-sysfs:x", "socket:[1]", ""})
    EXPECT_EQ(place(link), nullptr) << link;
}

TEST(SysfsPath, JoinsWhatHasRoom) {
  static char below[kPathRoom];
  EXPECT_TRUE(join(below, "softhca0/ports", "1/state"));
  EXPECT_STREQ(below, "/softhca0/ports/1/state");
  EXPECT_FALSE(join(below, "softhca0", std::string(kPathRoom, 'a').c_str()));
}

TEST(SysfsPath, ReadsAFoldersEntriesFromAnyPlace) {
  const char* const text = "dports\nffw_ver\n";
  std::string seen;
  std::size_t at = 0, behind_dots = 0;
  for (FolderEntry entry{}; next_entry(text, at, entry);) {
    seen += entry.kind + std::string(entry.name, entry.name_bytes) + " ";
    if (seen == "d. d.. ") behind_dots = at;
  }
  EXPECT_EQ(seen, "d. d.. dports ffw_ver ");
  FolderEntry entry{};
  ASSERT_TRUE(next_entry(text, behind_dots, entry));
  EXPECT_EQ(std::string(entry.name, entry.name_bytes), "ports");
}

TEST(SysfsPath, NumbersAFileAlikeFromItsFolderAndByItself) {
  EXPECT_EQ(number_of("softhca0", "ports", 5), number_of("softhca0/ports"));
  EXPECT_EQ(number_of("", "softhca0", 8), number_of("softhca0"));
  EXPECT_NE(number_of("softhca0"), number_of("softhca1"));
}

}  // namespace
}  // namespace softhca::abi
