// Journey: one transfer through two modelled servers, from the allocation of memory to the
// completion, told from the run's own tables and events.
//
// See also  sim/story.h (what comes out), sim/wrong.h (the same with something broken)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "sim/story.h"

namespace softhca::sim {

enum class Operation : std::uint8_t { Write, Read, Send };
enum class IommuChoice : std::uint8_t { On, Deferred, PassThrough, Off };

struct JourneySettings {
  Operation operation = Operation::Write;
  std::uint64_t bytes = 10'000;     // 1 to kLongestJourney
  std::uint64_t offset = 100;       // of the buffer in its first page, below 4096
  std::uint64_t page_bytes = 4096;  // 4 KiB, 2 MiB or 1 GiB
  IommuChoice iommu = IommuChoice::On;
  std::uint32_t fragmentation = 60;  // percent: how scattered the free frames are
  bool gpu = false;                  // the server's buffer lies in GPU memory
  bool acs_redirect = true;          // a switch sends NIC and GPU up to the root complex
  std::uint32_t hosts = 2;           // 2 to 8; the others are there, and are not disturbed
  bool sockets = false;              // send the same bytes by sockets too
  std::uint32_t compare = 0;         // so many transfers by each way; 0: none
  std::uint64_t seed = 1;
  std::string wrong;  // a name of sim/wrong.h, or empty
};

inline constexpr std::uint64_t kLongestJourney = std::uint64_t{1} << 30;

// FAILS WITH one line that says what does not fit together.
Result<Story, std::string> tell_journey(const JourneySettings& settings);

}  // namespace softhca::sim
