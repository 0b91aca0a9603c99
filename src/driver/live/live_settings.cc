#include "driver/live/live_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "os/environment.h"

namespace softhca::driver {

using trace::ReasonId;

namespace {

// Reads variables, until one makes no sense; then it knows which.
class Reader {
 public:
  // What stands for the word that the variable has; the first is what it is if it is not set.
  template <class Value>
  struct Choice {
    std::string_view word;
    Value value;
  };
  template <class Value>
  Value one_of(const char* variable, std::initializer_list<Choice<Value>> choices) {
    const auto text = os::env_text(variable);
    if (!text) return choices.begin()->value;
    const auto found = std::ranges::find(choices, *text, &Choice<Value>::word);
    if (found != choices.end()) return found->value;
    std::vector<std::string_view> words;
    for (const Choice<Value>& choice : choices) words.push_back(choice.word);
    refuse(variable, *text, fmt::format("{}", fmt::join(words, ", ")));
    return choices.begin()->value;
  }

  bool flag(const char* variable) {
    const auto text = os::env_text(variable);
    const auto value = os::env_flag(variable);
    if (text && !value) refuse(variable, *text, "0, 1");
    return value.value_or(false);
  }

  std::optional<std::uint64_t> number(const char* variable, std::uint64_t highest) {
    const auto text = os::env_text(variable);
    const auto value = os::env_number(variable);
    if (text && (!value || *value > highest))
      refuse(variable, *text, fmt::format("0 to {}", highest));
    return value;
  }

  const std::optional<std::string>& wrong() const { return wrong_; }

 private:
  void refuse(const char* variable, const std::string& text, const std::string& instead) {
    if (!wrong_) wrong_ = fmt::format(" {} is \"{}\". It can be: {}.", variable, text, instead);
  }
  std::optional<std::string> wrong_;
};

transport::CongestionSettings read_congestion(Reader& reader) {
  using Ecn = transport::CongestionSettings::Ecn;
  constexpr std::uint64_t kLongestUs = 1'000'000;
  transport::CongestionSettings settings;
  settings.ecn = reader.one_of<Ecn>(
      "SOFTHCA_ECN", {{"notify", settings.ecn}, {"off", Ecn::Off}, {"control", Ecn::Control}});
  if (const auto us = reader.number("SOFTHCA_CNP_INTERVAL", kLongestUs))
    settings.cnp_interval = microseconds(static_cast<std::int64_t>(*us));
  return settings;
}

std::optional<os::PinBackend> read_pin(Reader& reader) {
  using os::PinBackend;
  return reader.one_of<std::optional<PinBackend>>(
      "SOFTHCA_PIN", {{"auto", std::nullopt},
                      {os::pin_backend_name(PinBackend::IoUring), PinBackend::IoUring},
                      {os::pin_backend_name(PinBackend::Mlock), PinBackend::Mlock},
                      {os::pin_backend_name(PinBackend::Counted), PinBackend::Counted}});
}

std::string file_named(const char* variable) { return os::env_text(variable).value_or(""); }

}  // namespace

Result<LiveSettings, NotOpened> LiveSettings::from_environment() {
  const auto profile = profile_from_environment();
  if (!profile) return NotOpened({.id = ReasonId::ProfileUnknown});
  Reader reader;
  enum class Local : std::uint8_t { On, Direct, Off };
  const auto local = reader.one_of<Local>(
      "SOFTHCA_LOCAL", {{"on", Local::On}, {"direct", Local::Direct}, {"off", Local::Off}});
  LiveSettings settings{
      .profile = *profile,
      .scatter = reader.flag("SOFTHCA_SCATTER"),
      .quiet = reader.flag("SOFTHCA_QUIET"),
      .pin = read_pin(reader),
      .pcap = file_named("SOFTHCA_PCAP"),
      .trace = file_named("SOFTHCA_TRACE"),
      .ledger = file_named("SOFTHCA_LEDGER"),
      .faults = file_named("SOFTHCA_FAULTS"),
      .congestion = read_congestion(reader),
      .frames = reader.one_of<bool>("SOFTHCA_MEMORY", {{"ordinary", false}, {"frames", true}}),
      .direct = local != Local::Off,
      .rings = local == Local::On,
      .engine =
          reader.one_of<EnginePlacement>("SOFTHCA_ENGINE", {{"auto", EnginePlacement::Auto},
                                                            {"inline", EnginePlacement::Inline},
                                                            {"thread", EnginePlacement::Thread}})};
  reader.flag("SOFTHCA_STRICT");  // read with the profile; here it is only looked at
  if (reader.wrong()) return NotOpened({.id = ReasonId::SettingUnknown}, *reader.wrong());
  return settings;
}

}  // namespace softhca::driver
