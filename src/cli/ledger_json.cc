#include <nlohmann/json.hpp>

#include "cli/ledger.h"
#include "cli/table.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using Figure = std::optional<std::uint64_t>;

// Members of the wrong type read as absent: a line of another version is still worth its figures.
Figure number(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  if (!found->is_number_unsigned() && found->get<std::int64_t>() < 0) return std::nullopt;
  return found->get<std::uint64_t>();
}

std::string text(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? "" : printable(found->get<std::string>());
}

Json child(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_object() ? Json::object() : *found;
}

Json figure(const Figure& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

Result<LedgerEntry, std::string> parse_ledger_line(std::string_view line) {
  const Json object = Json::parse(line, nullptr, false);
  if (object.is_discarded()) return std::string("not JSON");
  if (!object.is_object()) return std::string("not a JSON object");
  const auto counters = object.find("counters");
  if (counters == object.end() || !counters->is_object()) return std::string("no \"counters\"");

  LedgerEntry entry;
  entry.pid = static_cast<std::int64_t>(number(object, "pid").value_or(0));
  entry.program = text(object, "program");
  entry.device = text(object, "device");
  entry.interface = text(object, "interface");
  entry.pin = text(object, "pin");
  const Json memory = child(object, "memory");
  entry.regions = number(memory, "regions");
  entry.bytes = number(memory, "bytes");
  for (const trace::CounterInfo& row : trace::kCounters)
    entry.counters[static_cast<std::size_t>(row.counter)] = number(*counters, row.name);

  const Json first = child(object, "first_region");
  if (!first.empty())
    entry.first_region = {.virtual_address = text(first, "virtual"),
                          .bus_address = text(first, "bus"),
                          .bytes = number(first, "bytes").value_or(0),
                          .pages = number(first, "pages").value_or(0),
                          .leaf_bytes = number(first, "leaf_bytes"),
                          .leaves = number(first, "leaves")};
  return entry;
}

std::string ledger_json(const std::vector<LedgerEntry>& entries) {
  using trace::Counter;
  Json processes = Json::array();
  std::uint64_t dma = 0, copies = 0, copied = 0;
  const auto of = [](const LedgerEntry& entry, Counter which) {
    return entry.counters[static_cast<std::size_t>(which)].value_or(0);
  };
  for (const LedgerEntry& entry : added_up(entries)) {
    Json counters = Json::object();
    for (const trace::CounterInfo& row : trace::kCounters)
      counters[std::string(row.name)] =
          figure(entry.counters[static_cast<std::size_t>(row.counter)]);
    Json one = {{"pid", entry.pid},
                {"program", entry.program},
                {"device", entry.device},
                {"interface", entry.interface},
                {"pin", entry.pin},
                {"memory", {{"regions", figure(entry.regions)}, {"bytes", figure(entry.bytes)}}},
                {"counters", counters}};
    if (const auto& first = entry.first_region)
      one["first_region"] = {{"virtual", first->virtual_address},
                             {"bus", first->bus_address},
                             {"bytes", first->bytes},
                             {"pages", first->pages},
                             {"leaf_bytes", figure(first->leaf_bytes)},
                             {"leaves", figure(first->leaves)}};
    processes.push_back(one);
    dma += of(entry, Counter::DmaReadBytes) + of(entry, Counter::DmaWriteBytes);
    copies += of(entry, Counter::CpuCopies);
    copied += of(entry, Counter::CpuCopyBytes);
  }
  const Json all = {
      {"processes", processes},
      {"summary", {{"dma_bytes", dma}, {"cpu_copies", copies}, {"cpu_copy_bytes", copied}}}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace softhca::cli
