// SysfsTree: what /sys/class/infiniband says of this host's devices.
//
// Paths below that folder and what is there: attributes with the kernel's names and units, made of
// what the verbs queries answer, and only those that are true of a device of software. Counters are
// read when their file is.
//
// Spec     Linux, Documentation/ABI/stable/sysfs-class-infiniband (names and units)
// See also ARCHITECTURE.md, "The sysfs view"; abi/sysfs/ and cli/, which show it to programs
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "driver/attributes.h"

namespace softhca::driver {

inline constexpr std::string_view kSysfsClass = "/sys/class";
inline constexpr std::string_view kSysfsRoot = "/sys/class/infiniband";

enum class SysfsKind : std::uint8_t {
  Absent,
  NotFolder,  // something below a file
  File,
  Folder,
  Link,
  Elsewhere,  // by "..", or by a link: the kernel's own
};

struct SysfsFound {
  SysfsKind kind = SysfsKind::Absent;
  std::string place;  // "softhca0/ports/1", without dots and links; "" is the root
  // File: what it holds. Folder: a line for each entry, its name behind "f", "d" or "l" for what it
  // is. Link: its target. Elsewhere: the path to go on with.
  std::string text;
};

class SysfsTree {
 public:
  // What the devices on an interface counted, by trace::Counter; empty: nothing yet.
  using Counting = std::function<std::vector<std::uint64_t>(const DeviceDescription&)>;

  SysfsTree(std::vector<DeviceDescription> devices, Counting counting);
  // Of the devices that programs see now, with the counters of published_counters().
  static SysfsTree now();

  // What is at a path below the root: "softhca0/ports/1/../1/state". `follow`: a link at its end is
  // taken too. `counts`: a counter's text is wanted, which is not cheap; else it is empty.
  SysfsFound find(std::string_view path, bool follow, bool counts = true) const;
  // Every file and link but the counters, by place: what may be written down once.
  std::vector<SysfsFound> fixed() const;

 private:
  struct Node {
    SysfsKind kind{};
    std::string text;
    std::size_t device{};
    std::size_t counter_row = kNoCounter;
  };
  static constexpr std::size_t kNoCounter = SIZE_MAX;

  void add(const std::string& place, Node node);
  void add_device(std::size_t index);
  void add_port(const std::string& port, std::size_t index);
  std::string content(const std::string& place, const Node& node) const;

  std::vector<DeviceDescription> devices_;
  Counting counting_;
  std::map<std::string, Node> nodes_;  // by place
};

}  // namespace softhca::driver
