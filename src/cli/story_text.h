// StoryText: a story as text for a terminal, or as JSON.
#pragma once
#include <string>

#include "cli/table.h"
#include "sim/story.h"

namespace softhca::cli {

// Summary first. `all`: every detail of every step too.
std::string story_text(const sim::Story& story, bool all, const Look& look);
std::string story_json(const sim::Story& story);
// What can go wrong, as JSON.
std::string wrongs_json();

}  // namespace softhca::cli
