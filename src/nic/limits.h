// Limits of the device. Every advertised maximum is reachable and one more fails (CASES C74).
#pragma once
#include <cstdint>

namespace softhca::nic {

inline constexpr std::uint32_t kMaxQps = 4096;  // one block of QPNs
inline constexpr std::uint32_t kMaxCqs = 4096;
inline constexpr std::uint32_t kMaxPds = 4096;
inline constexpr std::uint32_t kMaxKeys = 65536;           // memory regions
inline constexpr std::uint32_t kMaxWindows = 16384;        // memory windows, which are keys as well
inline constexpr std::uint32_t kMaxMulticastGroups = 256;  // each has a socket of its own
inline constexpr std::uint32_t kMaxMulticastMembers = 256;  // queue pairs of one group
inline constexpr std::uint32_t kMaxFlows = 4096;            // rules for raw packets
inline constexpr std::uint32_t kMaxSpread = 512;  // work queues that frames are spread over
inline constexpr std::uint32_t kMaxSpreadTables = 4096;
inline constexpr std::uint32_t kMaxAhs = 65536;
inline constexpr std::uint64_t kDeviceMemoryBytes = 1u << 20;
inline constexpr std::uint32_t kMaxQueueEntries = 16384;  // work requests of one queue
inline constexpr std::uint32_t kMaxSrqs = 4096;  // their numbers are those of a block of QPNs
inline constexpr std::uint32_t kMaxTags = 1024;  // that wait in one list
inline constexpr std::uint32_t kMaxTagOperations = 256;   // of a list at once; each is done at once
inline constexpr std::uint32_t kMaxRendezvousBytes = 64;  // of a request's headers
inline constexpr std::uint32_t kMaxXrcds = 4096;
inline constexpr std::uint32_t kMaxCqes = 1u << 20;
inline constexpr std::uint32_t kMaxSges = 32;
inline constexpr std::uint32_t kMaxInlineBytes = 512;
inline constexpr std::uint32_t kMaxReads = 16;  // READs outstanding on a queue pair
inline constexpr std::uint32_t kMaxMessageBytes = 1u << 31;
inline constexpr std::uint32_t kGidTableLength = 16;
inline constexpr std::uint32_t kCompletionVectors = 1;

}  // namespace softhca::nic
