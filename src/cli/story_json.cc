#include <nlohmann/json.hpp>

#include "cli/story_text.h"
#include "sim/wrong.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;

Json step_json(const sim::Step& step) {
  Json facts = Json::array();  // a name may be that of the fact before: ""
  for (const sim::Fact& fact : step.facts)
    facts.push_back({{"name", fact.name}, {"value", fact.value}});
  return {{"title", step.title},
          {"phase", step.phase},
          {"host", step.host},
          {"told", step.told},
          {"facts", facts},
          {"details", step.details},
          {"refused", step.mark == sim::Mark::Refused},
          {"unnoticed", step.mark == sim::Mark::Unnoticed}};
}

Json ledger_row_json(const sim::LedgerRow& row, bool has_sockets) {
  Json json = {{"name", row.name},
               {"unit", row.unit},
               {"rdma", {{"client", row.rdma[0]}, {"server", row.rdma[1]}}}};
  if (has_sockets) json["sockets"] = {{"client", row.sockets[0]}, {"server", row.sockets[1]}};
  return json;
}

Json way_json(const sim::WaySummary& way) {
  return {{"transfers", way.transfers},
          {"cpu_busy_ps", way.cpu_busy.ps},
          {"latency_mean_ps", way.latency_mean.ps},
          {"latency_p50_ps", way.latency_p50.ps},
          {"latency_p99_ps", way.latency_p99.ps},
          {"cpu_copy_bytes", way.cpu_copy_bytes},
          {"system_calls", way.system_calls},
          {"interrupts", way.interrupts}};
}

}  // namespace

std::string wrongs_json() {
  Json json = Json::array();
  for (const sim::Wrong& wrong : sim::wrongs())
    json.push_back({{"name", wrong.name}, {"text", wrong.text}});
  return json.dump(2) + "\n";
}

std::string story_json(const sim::Story& story) {
  Json json = {{"headline", story.headline}, {"setting", story.setting}};
  json["steps"] = Json::array();
  for (const sim::Step& step : story.steps) json["steps"].push_back(step_json(step));
  json["views"] = Json::array();
  for (const sim::View& view : story.views)
    json["views"].push_back({{"who", view.who}, {"sees", view.sees}});
  if (!story.remedy.empty()) json["remedy"] = story.remedy;
  json["ledger"] = Json::array();
  for (const sim::LedgerRow& row : story.ledger)
    json["ledger"].push_back(ledger_row_json(row, story.has_sockets));
  if (!story.ways.empty())
    json["compared"] = {{"rdma", way_json(story.ways.front())},
                        {"sockets", way_json(story.ways.back())}};
  json["constants"] = Json::array();
  for (const sim::Citation& c : story.citations)
    json["constants"].push_back({{"name", c.name}, {"value", c.value}, {"source", c.source}});
  json["took_ps"] = story.took.ps;
  json["journal_hash"] = story.journal_hash;
  json["came_out_right"] = story.came_out_right;
  return json.dump(2) + "\n";
}

}  // namespace softhca::cli
