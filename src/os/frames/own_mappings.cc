#include "os/frames/own_mappings.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <utility>

namespace softhca::os {
namespace {

struct LinesClosed {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Lines = std::unique_ptr<std::FILE, LinesClosed>;

using Mappings = Result<std::vector<OwnMapping>, SystemError>;

constexpr const char* kMaps = "/proc/self/maps";

// visit() says whether it wants more.
template <class Visit>
Result<void, SystemError> for_each_line(Visit visit) {
  const Lines file(std::fopen(kMaps, "re"));
  if (!file) return last_error("open");
  char line[4352];  // a path of PATH_MAX and what is before it
  while (std::fgets(line, sizeof line, file.get()) != nullptr)
    if (!visit(line)) return {};
  if (std::ferror(file.get()) != 0) return last_error("read");
  return {};
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

namespace {

// PROCMAP_QUERY of Linux 6.11; this C library's headers do not have it.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery);
  std::uint64_t flags = 0;
  std::uint64_t address = 0;
  std::uint64_t start = 0, end = 0;
  std::uint64_t rights = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t inode = 0;
  std::uint32_t major_number = 0, minor_number = 0;
  std::uint32_t name_bytes = 0, build_id_bytes = 0;
  std::uint64_t name = 0, build_id = 0;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);
constexpr std::uint64_t kReadable = 1, kWritable = 2, kExecutable = 4, kShared = 8;
constexpr std::uint64_t kThatOrTheNext = 16;

// The mapping that has the address, or the first behind it. errno is ENOENT if there is none.
std::optional<OwnMapping> ask_for_mapping(int maps, std::uint64_t address) {
  char name[256] = {};
  MappingQuery query;
  query.flags = kThatOrTheNext;
  query.address = address;
  query.name = reinterpret_cast<std::uint64_t>(name);
  query.name_bytes = sizeof name;
  int refused = ::ioctl(maps, kQueryMapping, &query);
  if (refused != 0 && errno == ENAMETOOLONG) {  // a file, then
    query = MappingQuery{};
    query.flags = kThatOrTheNext;
    query.address = address;
    name[0] = '/';
    refused = ::ioctl(maps, kQueryMapping, &query);
  }
  if (refused != 0) return std::nullopt;
  return OwnMapping{.range = {{query.start}, query.end - query.start},
                    .readable = (query.rights & kReadable) != 0,
                    .writable = (query.rights & kWritable) != 0,
                    .executable = (query.rights & kExecutable) != 0,
                    .shared = (query.rights & kShared) != 0,
                    .offset = query.offset,
                    .file = {::makedev(query.major_number, query.minor_number), query.inode},
                    .name = name};
}

// Nothing if the kernel cannot be asked so. It costs the same however many mappings there are.
std::optional<std::vector<OwnMapping>> asked_mappings(Range<VirtSpace> range) {
  const OwnedFd maps(::open(kMaps, O_RDONLY | O_CLOEXEC));
  std::vector<OwnMapping> found;
  const std::uint64_t end = range.start.value + range.length;
  for (std::uint64_t at = range.start.value; at < end;) {
    auto mapping = ask_for_mapping(maps.get(), at);
    if (!mapping && errno != ENOENT) return std::nullopt;
    if (!mapping || !mapping->range.overlaps(range)) break;
    at = mapping->range.start.value + mapping->range.length;
    found.push_back(std::move(*mapping));
  }
  return found;
}

}  // namespace

Mappings own_mappings(Range<VirtSpace> range) {
  if (auto asked = asked_mappings(range)) return std::move(*asked);
  return read_mappings(range);
}

Mappings read_mappings(Range<VirtSpace> range) {
  std::vector<OwnMapping> found;
  const auto read = for_each_line([&](const char* line) {
    auto mapping = mapping_of_line(line);
    if (mapping && mapping->range.overlaps(range)) found.push_back(std::move(*mapping));
    return !mapping || mapping->range.start < advance(range.start, range.length);
  });
  if (!read) return read.error();
  return found;
}

Mappings own_mappings_of(const FileIdentity& file) {
  std::vector<OwnMapping> found;
  const auto read = for_each_line([&](const char* line) {
    auto mapping = mapping_of_line(line);
    if (mapping && mapping->is_of(file)) found.push_back(std::move(*mapping));
    return true;
  });
  if (!read) return read.error();
  return found;
}

// Each has a folder there; the other two links are of the folder itself.
std::uint64_t own_thread_count() {
  struct stat tasks {};
  if (::stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink < 3) return ~std::uint64_t{0};
  return tasks.st_nlink - 2;
}

}  // namespace softhca::os
