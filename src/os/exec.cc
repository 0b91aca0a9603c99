#include "os/exec.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "os/owned_fd.h"

namespace softhca::os {
namespace {

constexpr std::size_t kCaughtBytes = std::size_t{1} << 20;

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& s : strings) list.push_back(s.data());
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> changed_environment(const EnvironmentChanges& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    if (std::ranges::find(changes, name, [](auto& c) { return c.first; }) == changes.end())
      variables.push_back(text);
  }
  for (const auto& [name, value] : changes) variables.push_back(name + "=" + value);
  return variables;
}

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// Reads until the writers are gone or the deadline passes; true if they are gone.
bool read_until(int fd, std::int64_t deadline_ms, std::string& text) {
  std::array<char, 4096> piece{};
  for (;;) {
    const std::int64_t left = deadline_ms - milliseconds_now();
    if (left <= 0) return false;
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t size = ::read(fd, piece.data(), piece.size());
    if (size == 0 || (size < 0 && errno != EINTR)) return true;
    if (size > 0)
      text.append(piece.data(),
                  std::min(static_cast<std::size_t>(size), kCaughtBytes - text.size()));
  }
}

// Waits for the child's end, at most until the deadline; true if it ended.
bool wait_until(pid_t child, std::int64_t deadline_ms, int& status) {
  for (;;) {
    if (::waitpid(child, &status, WNOHANG) == child) return true;
    if (milliseconds_now() >= deadline_ms) return false;
    ::poll(nullptr, 0, 1);
  }
}

// Starts the program with its output in `out`; 0 or errno.
int spawn(const std::vector<std::string>& arguments, const EnvironmentChanges& changes, int out,
          pid_t& child) {
  std::vector<std::string> argument_strings = arguments;
  std::vector<std::string> variables = changed_environment(changes);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  const int error = ::posix_spawnp(&child, argument_strings[0].c_str(), &actions, &attributes,
                                   pointers(argument_strings).data(), pointers(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

int change_environment(const EnvironmentChanges& changes) {
  for (const auto& [name, value] : changes)
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) return errno;
  return 0;
}

int exec_program(const std::vector<std::string>& arguments) {
  ASSERT(!arguments.empty());
  std::vector<std::string> strings = arguments;
  ::execvp(strings[0].c_str(), pointers(strings).data());
  return errno;
}

Result<CaughtOutput, int> run_and_catch(const std::vector<std::string>& arguments,
                                        const EnvironmentChanges& changes, Duration limit) {
  ASSERT(!arguments.empty());
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
  const OwnedFd out(ends[0]);
  OwnedFd in(ends[1]);
  pid_t child = -1;
  if (const int error = spawn(arguments, changes, in.get(), child)) return error;
  in.reset();

  CaughtOutput caught;
  int status = 0;
  const std::int64_t deadline_ms = milliseconds_now() + limit.nanoseconds() / 1'000'000;
  const bool ended =
      read_until(out.get(), deadline_ms, caught.text) && wait_until(child, deadline_ms, status);
  if (!ended) {
    caught.out_of_time = true;
    ::kill(-child, SIGKILL);  // its group: what it started goes too
    ::waitpid(child, &status, 0);
  }
  caught.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return caught;
}

}  // namespace softhca::os
