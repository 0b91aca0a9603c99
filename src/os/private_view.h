// PrivateView: a folder that only this process, and what it becomes and starts, sees.
//
// A tmpfs in a mount namespace of its own: whatever ends the processes, it goes with the last one.
// Who may not make one gets a user namespace besides, in which the user stays the same.
//
// See also  user_namespaces(7), mount_namespaces(7)
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "os/kernel_features.h"

namespace softhca::os {

struct PlacedFile {
  std::string path;  // in the folder; the folders on the way are made
  std::string text;
  bool is_link = false;  // to `text`
};

struct ViewRefusal {
  std::string step;  // "a user namespace", "a tmpfs over /sys/class"
  int error{};
};

// Puts the files into `folder`, over what is there. Where there is no such folder the one that it
// is to be in is covered, with all else in it as before. The process stays half-way in where that
// fails. REQUIRES: no other thread.
std::optional<ViewRefusal> enter_private_view(const std::string& folder,
                                              const std::vector<PlacedFile>& files);

// Whether that would work, tried in a child.
Attempt try_private_view(const std::string& folder);

}  // namespace softhca::os
