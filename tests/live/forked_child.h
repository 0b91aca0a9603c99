// ForkedChild: a child that a test starts, bounded in time, with what it said on stderr.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

// In the body of a child: says what does not hold and ends it with status 1.
#define HOLDS(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                          \
    }                                                                                    \
  } while (0)

namespace verbs_test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = false;
#endif

class ForkedChild {
 public:
  // Forks; the child runs body(), which gives its exit status.
  template <class Body>
  explicit ForkedChild(Body&& body) : said_(memfd_create("stderr", MFD_CLOEXEC)) {
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(said_, STDERR_FILENO);
    alarm(kSecondsAtMost);  // should the test itself be killed
    const int status = std::forward<Body>(body)();
    _exit(status);
  }
  ~ForkedChild() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(said_);
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  pid_t pid() const { return pid_; }

  // The status as waitpid gives it; -1 if it did not end in time, and then it is killed.
  int wait() {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{fd, POLLIN, 0};
    const bool in_time = poll(&ended, 1, (kSecondsAtMost + 10) * 1000) == 1;
    close(fd);
    if (!in_time) kill(pid_, SIGKILL);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return in_time ? status : -1;
  }
  // That it ended by itself with this exit status.
  void expect_exit(int expected) {
    const int status = wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == expected)
        << "status " << status << ", said: " << said();
  }
  std::string said() const {
    std::string text(1 << 16, '\0');
    const ssize_t bytes = pread(said_, text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  static constexpr int kSecondsAtMost = 60;
  int said_;
  pid_t pid_;
};

// A pipe on which one process waits for another.
class Signal {
 public:
  Signal() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void give() { EXPECT_EQ(write(ends_[1], "x", 1), 1); }
  // False after ten seconds.
  bool take() {
    pollfd ready{ends_[0], POLLIN, 0};
    char byte;
    return poll(&ready, 1, 10'000) == 1 && read(ends_[0], &byte, 1) == 1;
  }
  template <class T>
  void send(const T& value) {
    EXPECT_EQ(write(ends_[1], &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  bool receive(T& value) {
    pollfd ready{ends_[0], POLLIN, 0};
    return poll(&ready, 1, 10'000) == 1 &&
           read(ends_[0], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }

 private:
  int ends_[2];
};

}  // namespace verbs_test
