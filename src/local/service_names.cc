#include "local/service_names.h"

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "local/port_table.h"

namespace softhca::local {

namespace {

constexpr std::size_t kBelievedAtMost = 1024;

std::string prefix_of(const Domain& domain, std::uint64_t service) {
  char number[17];
  std::snprintf(number, sizeof number, "%016llx", static_cast<unsigned long long>(service));
  return "softhca/1/service/" + std::to_string(domain.interface_index) + "/" + number + "/";
}

std::string place_of(const os::IpAddress& address) {
  return (address == os::IpAddress{} ? "*" : os::address_text(address)) + "/";
}

std::optional<std::uint32_t> block_at(const std::vector<std::string>& names,
                                      const std::string& prefix) {
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    std::uint32_t block = kNoBlock;
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + prefix.size(), end, block);
    if (read.ec == std::errc{} && read.ptr == end && can_be_owned(block)) return block;
  }
  return std::nullopt;
}

}  // namespace

bool ServiceNames::claim(std::uint64_t service, const os::IpAddress& address) {
  const std::string place = prefix_of(domain_, service) + place_of(address);
  if (block_at(os::host_names(place), place)) return false;
  auto name = os::HostName::take(place + std::to_string(block_));
  if (!name) return false;
  held_.insert_or_assign(Key{service, address}, std::move(*name));
  return true;
}

void ServiceNames::give_back(std::uint64_t service, const os::IpAddress& address) {
  held_.erase({service, address});
}

bool ServiceNames::may_look(Time now) {
  if (now >= second_ends_) {
    second_ends_ = now + seconds(1);
    looks_ = 0;
  }
  return looks_++ < kLooksPerSecond;
}

ServiceNames::Listener ServiceNames::find(std::uint64_t service, const os::IpAddress& address,
                                          Time now) {
  const Key key{service, address};
  const auto believed = believed_.find(key);
  if (believed != believed_.end() && now < believed->second.until)
    return {Found::Block, believed->second.block};
  if (!may_look(now)) return {Found::Unknown, {}};
  const std::string prefix = prefix_of(domain_, service);
  const std::vector<std::string> names = os::host_names(prefix);
  auto block = block_at(names, prefix + place_of(address));
  if (!block && address.is_ipv4())
    block = block_at(names, prefix + place_of(os::IpAddress::of_ipv4({})));
  if (!block) block = block_at(names, prefix + place_of({}));
  if (!block) return {Found::Nobody, {}};
  if (believed_.size() >= kBelievedAtMost) believed_.clear();
  believed_.insert_or_assign(key, Belief{*block, now + kBelievedFor});
  return {Found::Block, *block};
}

}  // namespace softhca::local
