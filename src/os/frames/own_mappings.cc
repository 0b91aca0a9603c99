#include "os/frames/own_mappings.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <memory>

namespace softhca::os {
namespace {

struct LinesClosed {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Lines = std::unique_ptr<std::FILE, LinesClosed>;

template <class Visit>
void for_each_line(const char* path, Visit visit) {
  const Lines file(std::fopen(path, "re"));
  char line[4352];  // a path of PATH_MAX and what is before it
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr)
    if (!visit(line)) return;
}

}  // namespace

std::optional<OwnMapping> mapping_of_line(const char* line) {
  std::uint64_t start = 0, end = 0, offset = 0, inode = 0;
  unsigned major_number = 0, minor_number = 0;
  char rights[5] = {};
  int name_at = 0;
  if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &start,
                  &end, rights, &offset, &major_number, &minor_number, &inode, &name_at) != 7 ||
      end <= start)
    return std::nullopt;
  OwnMapping mapping{.range = {{start}, end - start},
                     .readable = rights[0] == 'r',
                     .writable = rights[1] == 'w',
                     .executable = rights[2] == 'x',
                     .shared = rights[3] == 's',
                     .offset = offset,
                     .file = {::makedev(major_number, minor_number), inode},
                     .name = line + name_at};
  if (!mapping.name.empty() && mapping.name.back() == '\n') mapping.name.pop_back();
  return mapping;
}

std::vector<OwnMapping> own_mappings(Range<VirtSpace> range) {
  std::vector<OwnMapping> found;
  for_each_line("/proc/self/maps", [&](const char* line) {
    auto mapping = mapping_of_line(line);
    if (mapping && mapping->range.overlaps(range)) found.push_back(std::move(*mapping));
    return !mapping || mapping->range.start < advance(range.start, range.length);
  });
  return found;
}

std::vector<OwnMapping> own_mappings_of(const FileIdentity& file) {
  std::vector<OwnMapping> found;
  for_each_line("/proc/self/maps", [&](const char* line) {
    auto mapping = mapping_of_line(line);
    if (mapping && mapping->is_of(file)) found.push_back(std::move(*mapping));
    return true;
  });
  return found;
}

// Each has a folder there; the other two links are of the folder itself.
std::uint64_t own_thread_count() {
  struct stat tasks {};
  if (::stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink < 3) return ~std::uint64_t{0};
  return tasks.st_nlink - 2;
}

}  // namespace softhca::os
