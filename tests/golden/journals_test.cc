// The journals of a few seeded worlds and journeys, byte for byte, whatever compiler built this.
//
// journals.txt has a line for each: its name, and the hash over all its events. The same test runs
// in GCC's build (./dev test) and in clang's (./dev lint). A difference between the two is a bug:
// something depends on the order in which a compiler evaluates arguments, on an address, or on the
// order of a hash table.
//
// After a change that is meant to alter journals (another event, another order of random draws),
// renew the file, and say in the commit why journals changed:
//
//     SOFTHCA_RENEW_JOURNALS=1 build/tests/golden/journals_test
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lossy_worlds.h"
#include "machines.h"
#include "sim/journey.h"
#include "worlds.h"

namespace softhca::sim {
namespace {

constexpr std::uint64_t kWorldSeeds = 8;
constexpr std::uint64_t kMachineSeeds = 24;

const std::string kTable = SOFTHCA_GOLDEN_DIR "/journals.txt";

struct NamedJourney {
  std::string name;
  JourneySettings settings;
};

std::vector<NamedJourney> journeys() {
  std::vector<NamedJourney> all(8);
  all[0].name = "write";
  all[1].name = "read";
  all[1].settings.operation = Operation::Read;
  all[2].name = "send";
  all[2].settings.operation = Operation::Send;
  all[2].settings.bytes = 100'000;
  all[3].name = "huge-pages";
  all[3].settings.page_bytes = 2 << 20;
  all[4].name = "deferred-of-four";
  all[4].settings.iommu = IommuChoice::Deferred;
  all[4].settings.hosts = 4;
  all[5].name = "pass-through";
  all[5].settings.iommu = IommuChoice::PassThrough;
  all[6].name = "gpu";
  all[6].settings.gpu = true;
  all[7].name = "gpu-direct";
  all[7].settings.gpu = true;
  all[7].settings.acs_redirect = false;
  return all;
}

using Journals = std::map<std::string, std::uint64_t>;

std::string table_text(const Journals& journals) {
  std::string text;
  for (const auto& [name, hash] : journals) text += fmt::format("{} {:#018x}\n", name, hash);
  return text;
}

Journals read_table() {
  Journals journals;
  std::ifstream in(kTable);
  std::string name, hash;
  while (in >> name >> hash) journals[name] = std::stoull(hash, nullptr, 16);
  return journals;
}

// With leading zeros: the table is in the order of the seeds.
std::string numbered(const std::string& what, std::uint64_t seed) {
  return fmt::format("{}-{:02}", what, seed);
}

Journals run_all() {
  Journals journals;
  for (std::uint64_t seed = 0; seed < kWorldSeeds; ++seed) {
    const WorldOutcome outcome = run_world(seed);
    EXPECT_EQ(outcome.wrong, "");
    journals[numbered("world", seed)] = outcome.journal;
  }
  for (std::uint64_t seed = 0; seed < kWorldSeeds; ++seed) {
    const LossyOutcome outcome = run_lossy_world(seed);
    EXPECT_EQ(outcome.wrong, "");
    journals[numbered("lossy", seed)] = outcome.journal;
  }
  for (std::uint64_t seed = 0; seed < kMachineSeeds; ++seed) {
    Machines machines(seed);
    EXPECT_EQ(machines.run(), "");
    journals[numbered("machines", seed)] = machines.world().journal_hash();
  }
  for (const NamedJourney& journey : journeys()) {
    const auto story = tell_journey(journey.settings);
    EXPECT_TRUE(story);
    if (story) journals["journey-" + journey.name] = story->journal_hash;
  }
  return journals;
}

TEST(Journals, AreTheSameByteForByteWhateverCompilerBuiltThis) {
  const Journals journals = run_all();
  const char* const renew = std::getenv("SOFTHCA_RENEW_JOURNALS");
  if (renew != nullptr && std::string(renew) == "1") {
    std::ofstream(kTable) << table_text(journals);
    GTEST_SKIP() << "journals.txt is renewed";
  }
  EXPECT_EQ(table_text(journals), table_text(read_table()))
      << "if journals were meant to change: SOFTHCA_RENEW_JOURNALS=1 build/tests/golden/"
         "journals_test";
}

}  // namespace
}  // namespace softhca::sim
