#include "cli/library.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/prng.h"

namespace softhca::cli {
namespace {

namespace fs = std::filesystem;

// A folder that goes with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = fs::temp_directory_path() / "softhca_cli_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path file(const fs::path& name, const std::string& content) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << content;
    return path / name;
  }
};

TEST(Library, TakesTheFolderBesideTheExecutableBeforeTheInstalledOne) {
  const Folder folder;
  const fs::path program = folder.path / "bin" / "softhca";
  EXPECT_EQ(find_library_folder(program), std::nullopt);
  folder.file("lib/libibverbs.so.1", "SOFTHCA_NETDEV");
  EXPECT_EQ(find_library_folder(program), folder.path / "lib");
  folder.file("lib/softhca/libibverbs.so.1", "SOFTHCA_NETDEV");
  EXPECT_EQ(find_library_folder(program), folder.path / "lib" / "softhca");
  folder.file("bin/lib/libibverbs.so.1", "SOFTHCA_NETDEV");
  EXPECT_EQ(find_library_folder(program), folder.path / "bin" / "lib");
}

TEST(Library, IsNotFooledByAStockLibraryOfTheSameName) {
  const Folder folder;
  folder.file("lib/libibverbs.so.1", "stock");
  EXPECT_EQ(find_library_folder(folder.path / "bin" / "softhca"), std::nullopt);
}

TEST(Library, PutsItsFolderInFrontOnce) {
  EXPECT_EQ(library_path_with("/a", ""), "/a");
  EXPECT_EQ(library_path_with("/a", "/b:/c"), "/a:/b:/c");
  EXPECT_EQ(library_path_with("/a", "/a:/b"), "/a:/b");
  EXPECT_EQ(library_path_with("/a", "/ab"), "/a:/ab");
}

TEST(Library, PreloadsBehindWhatIsPreloadedAlready) {
  EXPECT_EQ(preload_with("/a/s.so", ""), "/a/s.so");
  EXPECT_EQ(preload_with("/a/s.so", "/b.so"), "/b.so:/a/s.so");
  EXPECT_EQ(preload_with("/a/s.so", "/b.so:/a/s.so"), "/b.so:/a/s.so");
}

TEST(Library, SaysWhyNothingIsPreloaded) {
  const Folder folder;
  EXPECT_NE(why_not_preloaded(folder.path).find("there is no " + folder.path.string()),
            std::string::npos);
  folder.file(kSysfsLibrary, "");
  EXPECT_EQ(why_not_preloaded(folder.path), "");
  folder.file(fs::path("a folder") / kSysfsLibrary, "");
  EXPECT_NE(why_not_preloaded(folder.path / "a folder").find("LD_PRELOAD cannot"),
            std::string::npos);
}

TEST(Library, ReadsWhatTheLoaderListed) {
  const LoaderListing listing = parse_loader_listing(
      "\tlinux-vdso.so.1 (0x00007fe389c7f000)\n"
      "\tlibibverbs.so.1 => /opt/x (1)/libibverbs.so.1 (0x00007fe389c46000)\n"
      "\tlibgone.so.2 => not found\n\tlibgone.so.2 => not found\n"
      "/usr/bin/p: /lib/libc.so.6: version `GLIBC_9.9' not found (required by /usr/bin/p)\n");
  EXPECT_EQ(listing.verbs, "/opt/x (1)/libibverbs.so.1");
  EXPECT_EQ(listing.missing, std::vector<std::string>{"libgone.so.2"});
  ASSERT_EQ(listing.complaints.size(), 1u);
  EXPECT_NE(listing.complaints[0].find("GLIBC_9.9"), std::string::npos);
  EXPECT_FALSE(parse_loader_listing("").verbs);
}

TEST(Library, AsksTheLoaderOfARealProgram) {
  const ProgramFile self = examine_program("/proc/self/exe");
  ASSERT_EQ(self.kind, ProgramKind::Dynamic);
  const auto listing = list_libraries(self, "");
  ASSERT_TRUE(listing) << listing.error();
  EXPECT_TRUE(listing->missing.empty());
  EXPECT_TRUE(listing->complaints.empty());
}

TEST(ProgramFile, IsFoundAsExecvpWouldFindIt) {
  const Folder folder;
  const fs::path tool = folder.file("bin/softhca_test_tool", "#!/bin/sh\n");
  EXPECT_EQ(find_program(tool), std::nullopt) << "not executable";
  ::chmod(tool.c_str(), 0755);
  EXPECT_EQ(find_program(tool), tool);
  EXPECT_TRUE(find_program("sh"));
  EXPECT_EQ(find_program("softhca_test_tool"), std::nullopt);
  EXPECT_EQ(find_program(folder.path), std::nullopt) << "a folder";
}

TEST(ProgramFile, TellsScriptsStaticAndForeignProgramsApart) {
  const Folder folder;
  const ProgramFile script = examine_program(folder.file("s", "#! /bin/sh -e\nexit\n"));
  EXPECT_EQ(script.kind, ProgramKind::Script);
  EXPECT_EQ(script.interpreter, "/bin/sh");
  EXPECT_EQ(examine_program(folder.file("t", "text")).kind, ProgramKind::Other);
  EXPECT_EQ(examine_program(folder.path / "gone").kind, ProgramKind::Other);

  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string elf(4096, '\0');
  self.read(elf.data(), 4096);
  EXPECT_EQ(examine_program(folder.file("d", elf)).kind, ProgramKind::Dynamic);
  std::string foreign = elf;
  foreign[4] = 1;  // EI_CLASS: 32 bits
  EXPECT_EQ(examine_program(folder.file("f", foreign)).kind, ProgramKind::Foreign);
  std::string fixed = elf;
  fixed[56] = fixed[57] = 0;  // e_phnum: no headers, so no interpreter
  const ProgramFile none = examine_program(folder.file("n", fixed));
  EXPECT_EQ(none.kind, ProgramKind::Static);
  EXPECT_NE(why_not_injected(none), "");
  EXPECT_EQ(why_not_injected(script), "");
}

TEST(ProgramFile, SurvivesAnyContent) {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::vector<char> elf(2048);
  self.read(elf.data(), static_cast<std::streamsize>(elf.size()));
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    Prng prng(seed);
    std::vector<char> odd = elf;
    for (int n = 0; n < 6; ++n) odd[prng.below(512)] = static_cast<char>(prng.next());
    odd.resize(prng.below(odd.size()));
    const ProgramFile program = classify_program(std::as_bytes(std::span(odd)));
    EXPECT_EQ(program.kind == ProgramKind::Dynamic,
              !program.interpreter.empty() && program.kind != ProgramKind::Script);
  }
}

}  // namespace
}  // namespace softhca::cli
