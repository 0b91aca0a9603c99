#include "os/exec.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace softhca::os {
namespace {

TEST(Exec, CatchesOutputErrorsAndExitStatus) {
  const auto caught =
      run_and_catch({"sh", "-c", "echo out; echo err >&2; exit 3"}, {}, seconds(20));
  ASSERT_TRUE(caught);
  EXPECT_EQ(caught->text, "out\nerr\n");
  EXPECT_EQ(caught->exit_status, 3);
  EXPECT_FALSE(caught->out_of_time);
}

TEST(Exec, ChangesTheEnvironmentOfTheChildAlone) {
  const auto caught = run_and_catch({"sh", "-c", "echo $SOFTHCA_EXEC_TEST $HOME"},
                                    {{"SOFTHCA_EXEC_TEST", "a b"}, {"HOME", "/h"}}, seconds(20));
  ASSERT_TRUE(caught);
  EXPECT_EQ(caught->text, "a b /h\n");
  EXPECT_EQ(::getenv("SOFTHCA_EXEC_TEST"), nullptr);
}

TEST(Exec, KillsWhatDoesNotEndInTime) {
  const auto caught = run_and_catch({"sh", "-c", "echo begun; sleep 600"}, {}, milliseconds(300));
  ASSERT_TRUE(caught);
  EXPECT_TRUE(caught->out_of_time);
  EXPECT_EQ(caught->text, "begun\n");
  EXPECT_EQ(caught->exit_status, 128 + SIGKILL);
}

TEST(Exec, ReportsAProgramThatIsNotThere) {
  const auto caught = run_and_catch({"/nonexistent/program"}, {}, seconds(20));
  ASSERT_FALSE(caught);
  EXPECT_EQ(caught.error(), ENOENT);
  EXPECT_EQ(exec_program({"/nonexistent/program"}), ENOENT);
}

TEST(Exec, BecomesTheProgramWithItsEnvironment) {
  const pid_t child = ::fork();
  if (child == 0) {
    change_environment({{"SOFTHCA_EXEC_TEST", "yes"}, {"SOFTHCA_PID", std::to_string(::getpid())}});
    exec_program({"sh", "-c", "test \"$SOFTHCA_EXEC_TEST\" = yes && test $$ = $SOFTHCA_PID"});
    ::_exit(99);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace softhca::os
