// Plans of faults: whatever the file says, there is a plan within its limits, or one line.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "faults/plan_text.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace softhca::faults;
  const auto plan = parse_plan({reinterpret_cast<const char*>(bytes), size}, "plan.toml");
  if (!plan) {
    const std::string& text = plan.error().text;
    require(text.starts_with("plan.toml:") && std::ranges::none_of(text, is_control));
    return 0;
  }
  require(!plan->faults.empty() && plan->faults.size() <= kFaultsAtMost);
  for (const Fault& fault : plan->faults)
    require(fault.nth != 0 && fault.every != 0 && fault.count != 0 && fault.line != 0 &&
            fault.time >= softhca::Duration{} && fault.passed_by <= 64 && fault.opcodes.any());
  return 0;
}
