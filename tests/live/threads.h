// What the process of a test has.
#pragma once
#include <dirent.h>

namespace verbs_test {

// How many entries a folder has; -1 if there is none.
inline int entries(const char* path) {
  DIR* const directory = opendir(path);
  if (directory == nullptr) return -1;
  int count = 0;
  while (const dirent* const entry = readdir(directory))
    if (entry->d_name[0] != '.') ++count;
  closedir(directory);
  return count;
}

inline int threads() { return entries("/proc/self/task"); }

}  // namespace verbs_test
