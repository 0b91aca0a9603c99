// Paths: which are ours, and the names that descriptors of ours carry.
//
// What a program opens is an anonymous file that is named after its place in the tree, so that it
// is known by /proc/self/fd whoever copied, inherited or was sent it; nothing is kept beside it.
#pragma once
#include <cstdio>
#include <cstring>

#include "driver/sysfs_tree.h"

namespace softhca::abi {

inline constexpr std::size_t kPathRoom = 512;  // for a path of ours
inline constexpr char kFileMark[] = "softhca-sysfs:";

// What lies behind the root in an absolute path: "" or "/softhca0/..."; null in any other path.
inline const char* below_root(const char* path) {
  constexpr std::string_view kRoot = driver::kSysfsRoot;
  if (path == nullptr || std::strncmp(path, kRoot.data(), kRoot.size()) != 0) return nullptr;
  const char* const below = path + kRoot.size();
  return *below == '\0' || *below == '/' ? below : nullptr;
}

// The place in what /proc/self/fd says of a descriptor: "/memfd:softhca-sysfs:softhca0 (deleted)".
// It is cut out of the text itself; null if the descriptor is not ours.
inline char* place_in_link(char* link) {
  constexpr char kBefore[] = "/memfd:", kBehind[] = " (deleted)";
  constexpr std::size_t kFront = sizeof kBefore - 1 + sizeof kFileMark - 1;
  const std::size_t length = std::strlen(link), tail = sizeof kBehind - 1;
  if (length < kFront + tail || std::strncmp(link, kBefore, sizeof kBefore - 1) != 0 ||
      std::strncmp(link + sizeof kBefore - 1, kFileMark, sizeof kFileMark - 1) != 0 ||
      std::strcmp(link + length - tail, kBehind) != 0)
    return nullptr;
  link[length - tail] = '\0';
  return link + kFront;
}

// "/PLACE/PATH" of a relative path below an open folder; false if that has no room.
inline bool join(char (&below)[kPathRoom], const char* place, const char* path) {
  const int length = std::snprintf(below, sizeof below, "/%s/%s", place, path);
  return length > 0 && static_cast<std::size_t>(length) < sizeof below;
}

// Entry `at` of a folder's text (its lines, as in SysfsFound): 0 is ".", 1 is "..", then positions
// behind these. False at the end; else `at` is that of the next.
struct FolderEntry {
  char kind;  // 'd', 'f' or 'l'
  const char* name;
  std::size_t name_bytes;
};
inline bool next_entry(const char* text, std::size_t& at, FolderEntry& entry) {
  constexpr std::size_t kDots = 2;
  if (at < kDots) {
    entry = {'d', "..", ++at};
    return true;
  }
  const char* const line = text + (at - kDots);
  const char* const end = std::strchr(line, '\n');
  if (end == nullptr) return false;
  entry = {*line, line + 1, static_cast<std::size_t>(end - line) - 1};
  at += static_cast<std::size_t>(end - line) + 1;
  return true;
}

// A number for a file, the same for the same place.
inline std::uint64_t number_of(const char* place, const char* name = "",
                               std::size_t name_bytes = 0) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&hash](const char* text, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
  };
  add(place, std::strlen(place));
  if (*place != '\0' && name_bytes != 0) add("/", 1);
  add(name, name_bytes);
  return hash | 1;
}

}  // namespace softhca::abi
