#include "sim/wrong.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/telling.h"
#include "sim/wrong_cases.h"
#include "trace/words.h"

namespace softhca::sim {
namespace {

using trace::EventKind;
using transport::Status;

constexpr std::string_view kNothing = "nothing";

std::string status_text(Status status) {
  switch (status) {
    case Status::Success:
      return "success (status 0)";
    case Status::LocalProtection:
      return "local protection error (status 4)";
    case Status::LocalQpOperation:
      return "local queue pair operation error (status 2)";
    case Status::RemoteAccess:
      return "remote access error (status 10)";
    case Status::RemoteOperation:
      return "remote operation error (status 11)";
    case Status::RemoteInvalidRequest:
      return "remote invalid request error (status 9)";
    case Status::RetriesExceeded:
      return "transport retry counter exceeded (status 12)";
    default:
      return fmt::format("status {}", static_cast<unsigned>(status));
  }
}

// What happens as usual, up to where it goes wrong.
std::vector<Step> steps_until(const Transfer& t, Reach reach) {
  std::vector<Step> steps = {tell_application(t, t.client)};
  if (reach == Reach::ClientRegistration) {
    steps.push_back(tell_allocation(t, t.client));
    return steps;
  }
  const TransferEnd& where = reach == Reach::ServerNic ? t.server : t.client;
  steps.push_back(tell_registration(t, where));
  if (!where.bus_pages.empty()) steps.push_back(tell_pins(t, where));
  if (reach == Reach::ServerNic) {
    steps.push_back(tell_nic(t, t.client));
    steps.push_back(tell_ethernet(t, t.client));
  }
  return steps;
}

View view_of_client(const Transfer& t) {
  View view{"application, client", ""};
  if (t.client.refused)
    view.sees = "its registration is refused: " + trace::reason_text(t.client.refused);
  else if (!t.completion())
    view.sees = "no completion, ever: it waits";
  else
    view.sees = fmt::format(
        "a completion: {}{}", status_text(t.completion()->status),
        t.completion()->status == Status::Success
            ? ""
            : fmt::format(", vendor_err {}", static_cast<unsigned>(t.completion()->reason)));
  return view;
}

View view_of_server(const Transfer& t) {
  View view{"application, server", ""};
  if (!t.is_posted()) {
    view.sees = kNothing;
    return view;
  }
  if (t.first_arrived().empty())
    view.sees = "nothing: it has given the memory back";
  else if (t.moved_all())
    view.sees = "the bytes";
  else if (t.is_untouched())
    view.sees = "its buffer as it left it: nothing has arrived";
  else
    view.sees = "a buffer that is partly overwritten";
  return view;
}

View view_of_nic(const Transfer& t, const TransferEnd& end, std::string who) {
  View view{std::move(who), ""};
  const trace::Reason& cause = end.cause;
  const Heard::Kind& refusals = t.heard().of(end.number(), EventKind::KeyRefusal);
  const Heard::Kind& checks = t.heard().of(end.number(), EventKind::KeyCheck);
  if (cause && cause.id != end.refused.id)
    view.sees = trace::reason_text(cause);
  else if (refusals.count != 0)
    view.sees = trace::counted(refusals.count, "refused key check");
  else if (checks.count != 0)
    view.sees = trace::counted(checks.count, "key check") + ", all allowed";
  else
    view.sees = kNothing;
  return view;
}

View view_of_iommu(const Transfer& t) {
  View view{"IOMMU, server", ""};
  const auto faults = t.server.host->iommu().faults().records();
  if (t.server.host->dma().mode() == host::IommuMode::Off)
    view.sees = "nothing: there is none";
  else if (!faults.empty())
    view.sees = host::fault_text(faults.front());
  else if (const auto stale = t.heard().count(t.server.number(), EventKind::StaleTranslation))
    view.sees = fmt::format("{} that its IOTLB still knows, though its table does not",
                            trace::counted(stale, "translation"));
  else if (!t.payload_accesses(t.server, EventKind::DmaWrite).empty() ||
           !t.payload_accesses(t.server, EventKind::DmaRead).empty())
    view.sees = "accesses that its table allows, and lets them pass";
  else
    view.sees = kNothing;
  return view;
}

bool came_as_expected(const Transfer& t, const Outcome& outcome) {
  std::optional<Status> status;
  if (t.completion()) status = t.completion()->status;
  const trace::ReasonId at_client = t.client.refused ? t.client.refused.id : t.client.cause.id;
  const auto faults = t.server.host->iommu().faults().records();
  const host::VtdReason iommu = faults.empty() ? host::VtdReason::None : faults.front().vtd;
  return status == outcome.status && at_client == outcome.at_client &&
         t.server.cause.id == outcome.at_server && iommu == outcome.iommu &&
         (!t.is_posted() || !t.moved_all());
}

std::string what_does_not_fit(const JourneySettings& settings, const WrongCase& wrong) {
  const std::string is_told = fmt::format("{} is told of ", wrong.what.name);
  if (settings.operation != Operation::Write) return is_told + "a WRITE; leave --op out";
  if (settings.gpu) return is_told + "memory of the host; leave --memory out";
  if (settings.iommu != IommuChoice::On) return is_told + "an IOMMU of its own; leave --iommu out";
  if (settings.page_bytes != kPage4K) return is_told + "pages of 4 KiB; leave --pages out";
  if (settings.sockets) return is_told + "RDMA alone; leave --sockets out";
  if (settings.compare != 0) return is_told + "RDMA alone; leave --compare out";
  if (settings.bytes < wrong.least_bytes)
    return fmt::format("{}{} bytes or more; raise --bytes", is_told, wrong.least_bytes);
  return "";
}

const WrongCase* find_case(std::string_view name) {
  const auto all = wrong_cases();
  const auto found = std::ranges::find(all, name, [](const WrongCase& c) { return c.what.name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::span<const Wrong> wrongs() {
  static const std::vector<Wrong> all = [] {
    std::vector<Wrong> list;
    for (const WrongCase& c : wrong_cases()) list.push_back(c.what);
    return list;
  }();
  return all;
}

Result<Story, std::string> tell_wrong(const JourneySettings& settings) {
  const WrongCase* const wrong = find_case(settings.wrong);
  if (wrong == nullptr)
    return fmt::format("nothing that can go wrong is called {}; see --wrong list", settings.wrong);
  if (const std::string why = what_does_not_fit(settings, *wrong); !why.empty()) return why;
  JourneySettings played = settings;
  played.bytes = std::min(settings.bytes, wrong->most_bytes);
  Transfer transfer(played, wrong->tweak);
  Account account;
  wrong->play(transfer, account);

  Story story;
  story.headline =
      fmt::format("--wrong {} (seed {}): {}", wrong->what.name, settings.seed, wrong->what.text);
  story.steps = steps_until(transfer, wrong->reach);
  Step happened;
  happened.phase = "What went wrong";
  happened.title = std::string(wrong->what.name);
  happened.host = transfer.server.cause || wrong->reach == Reach::ServerNic ? "server" : "client";
  happened.told = account.told;
  happened.facts = account.facts;
  happened.mark = wrong->outcome.status == Status::Success ? Mark::Unnoticed : Mark::Refused;
  story.steps.push_back(happened);
  const auto of_kernel = [](const std::string& noticed) {
    return noticed.empty() ? std::string(kNothing) : noticed;
  };
  story.views = {view_of_client(transfer),
                 view_of_nic(transfer, transfer.client, "NIC, client"),
                 {"kernel, client", of_kernel(account.client_kernel)},
                 view_of_nic(transfer, transfer.server, "NIC, server"),
                 view_of_iommu(transfer),
                 {"kernel, server", of_kernel(account.server_kernel)},
                 view_of_server(transfer)};
  story.remedy = wrong->remedy;
  story.journal_hash = transfer.world().journal_hash();
  story.came_out_right = came_as_expected(transfer, wrong->outcome);
  return story;
}

}  // namespace softhca::sim
