#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/story_text.h"
#include "sim/wrong.h"

namespace softhca::cli {

int command_journey(const JourneyArguments& arguments, Terminal& terminal) {
  if (arguments.list_wrong && arguments.json) {
    terminal.out << wrongs_json();
    return 0;
  }
  if (arguments.list_wrong) {
    Table table({{"--wrong"}, {"What is broken"}});
    for (const sim::Wrong& wrong : sim::wrongs())
      table.add_row({std::string(wrong.name), std::string(wrong.text)});
    terminal.out << table.text(terminal.look);
    return 0;
  }
  const auto story = sim::tell_journey(arguments.settings);
  if (!story) {
    terminal.err << fmt::format("softhca journey: {}\n", story.error());
    return 2;
  }
  terminal.out << (arguments.json ? story_json(*story)
                                  : story_text(*story, arguments.steps, terminal.look));
  if (story->came_out_right) return 0;
  terminal.err << "softhca journey: it did not come out as it should; please report this with the"
                  " options that you gave\n";
  return 1;
}

}  // namespace softhca::cli
