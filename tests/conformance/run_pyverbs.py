#!/usr/bin/env python3
"""Runs rdma-core's own test suite (Debian's python3-pyverbs) on the device and judges the outcome.

usage: run_pyverbs.py --suite DIR --softhca PATH --deviations FILE --as root|user --minimum N

DIR holds the suite's files, uncompressed, and is called "tests". Every module runs in a process of
its own with a limit. Nothing may fail; what is skipped has to be in FILE with its reason, and what
is in FILE has to be skipped; at least N tests have to pass.

  run_pyverbs.py --module NAME DIR RESULTS    one module, in this process; one line of JSON a test
"""
import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import unittest

MODULE_SECONDS = 120
DEVICE = ["--dev", "softhca0", "--port", "1", "--gid", "0"]


class Lines(unittest.TestResult):
    """A result that writes each test's outcome down as soon as it is known."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def write(self, test, outcome, text=""):
        print(json.dumps([test.id(), outcome, text]), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.write(test, "started")

    def addSuccess(self, test):
        self.write(test, "passed")

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addFailure(self, test, error):
        self.write(test, "failed", self._exc_info_to_string(error, test))

    def addError(self, test, error):
        self.write(test, "failed", self._exc_info_to_string(error, test))


def run_module(name, directory, results):
    sys.path[:0] = [directory, os.path.dirname(directory)]
    from args_parser import parser  # the suite's; its modules ask it for the device
    sys.argv[1:] = DEVICE
    parser.parse_args()
    sys.modules.setdefault("tests.args_parser", sys.modules["args_parser"])
    # A class that one module takes from another is a case of the module that defines it.
    module = unittest.defaultTestLoader.loadTestsFromName("tests." + name)
    suite = unittest.TestSuite(
        test for case in module for test in case if type(test).__module__ == "tests." + name)
    with open(results, "a", encoding="utf-8") as out:
        suite.run(Lines(out))


class Deviations:
    """Lines of PATTERN WHEN REASON: which tests do not pass, and why."""

    WHEN = ("always", "user", "no-huge-pages")

    def __init__(self, path, conditions):
        self.rows = []
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip() or line.startswith("#"):
                    continue
                words = line.split(None, 2)
                if len(words) != 3 or words[1] not in self.WHEN:
                    sys.exit(f"{path}:{number}: a row is PATTERN {'|'.join(self.WHEN)} REASON")
                self.rows.append((words[0], words[1], words[2].strip(), []))
        self.conditions = conditions

    def explains(self, test):
        for pattern, when, _, explained in self.rows:
            if when in self.conditions and fnmatch.fnmatchcase(test, pattern):
                explained.append(test)
                return True
        return False

    def unused(self):
        return [row[0] for row in self.rows if row[1] in self.conditions and not row[3]]


def has_huge_pages():
    path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    try:
        with open(path, encoding="ascii") as number:
            return int(number.read()) > 0
    except OSError:
        return False


def outcomes_of(module, suite, softhca):
    """The last outcome of each test, and what the process printed."""
    with tempfile.NamedTemporaryFile("r", suffix=".results") as results:
        command = [softhca, "run", "--", sys.executable, "-B", os.path.abspath(__file__),
                   "--module", module, suite, results.name]
        try:
            done = subprocess.run(command, timeout=MODULE_SECONDS, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, check=False)
            said, status = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")
            status = f"not done after {MODULE_SECONDS} s"
        outcomes = {}
        for line in results:
            test, outcome, text = json.loads(line)
            outcomes[test] = (outcome, text)
    for test, (outcome, _) in outcomes.items():
        if outcome == "started":
            outcomes[test] = ("failed", f"its process ended in it: {status}\n{said[-2000:]}")
    if status != 0 and not any(outcome == "failed" for outcome, _ in outcomes.values()):
        outcomes[f"tests.{module}"] = ("failed", f"its process ended with {status}\n{said[-2000:]}")
    return outcomes


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--module":
        return run_module(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    for option in ("--suite", "--softhca", "--deviations"):
        parser.add_argument(option, required=True)
    parser.add_argument("--as", dest="who", choices=("root", "user"), required=True)
    parser.add_argument("--minimum", type=int, required=True)
    options = parser.parse_args()

    conditions = {"always"} | ({"user"} if options.who == "user" else set())
    conditions |= set() if has_huge_pages() else {"no-huge-pages"}
    deviations = Deviations(options.deviations, conditions)
    os.environ.setdefault("SOFTHCA_QUIET", "1")

    modules = sorted(name[:-3] for name in os.listdir(options.suite)
                     if name.startswith("test_") and name.endswith(".py"))
    count = {"passed": 0, "skipped": 0, "failed": 0}
    wrong = []
    for module in modules:
        for test, (outcome, text) in outcomes_of(module, options.suite, options.softhca).items():
            count[outcome] += 1
            if outcome == "failed":
                wrong.append(f"{test}: failed\n  {text.strip()}")
            elif outcome == "skipped" and not deviations.explains(test):
                wrong.append(f"{test}: skipped, which no row of the deviations explains: {text}")
            elif outcome == "passed" and deviations.explains(test):
                wrong.append(f"{test}: passes, and has a row in the deviations")
    wrong += [f"{pattern}: a row of the deviations that no test needs"
              for pattern in deviations.unused()]
    if count["passed"] < options.minimum:
        wrong.append(f"{count['passed']} tests passed, {options.minimum} have to")
    for line in wrong:
        print("FAIL", line)
    huge = "with" if "no-huge-pages" not in conditions else "without"
    print(f"rdma-core's suite as {options.who}, {huge} huge pages: {sum(count.values())} tests, "
          f"{count['passed']} passed, {count['skipped']} skipped, {count['failed']} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
