#!/usr/bin/env python3
"""Lists the specification's tags (C9-105, o10-37) that the code cites, and who tests them.

Usage: spec_tags.py ROOT | spec_tags.py --self-test

For reading, not a gate: the exit status is 0. Tags that no test cites come first.
"""
import re
import sys
import tempfile
from pathlib import Path

import sources

TAG = re.compile(r"\b([Co]\d{1,2}-\d{1,3}(?:\.\d+)*)\b")


def citations(root):
    """(code, tests): for each, tag -> the files that cite it."""
    code, tests = {}, {}
    for path in sources.cpp_files(root):
        relative = path.relative_to(root)
        where = tests if sources.is_test(path) or relative.parts[0] == "tests" else code
        for tag in TAG.findall(sources.read(path)):
            where.setdefault(tag, set()).add(relative.as_posix())
    return code, tests


def in_order(tags):
    return sorted(tags, key=lambda tag: (tag[0], [int(n) for n in re.findall(r"\d+", tag)]))


def report(root):
    code, tests = citations(root)
    untested = in_order(code.keys() - tests.keys())
    lines = [f"{len(code)} tags in the code, {len(tests)} in tests, {len(untested)} without a test"]
    lines += [f"untested {tag:10} {' '.join(sorted(code[tag]))}" for tag in untested]
    lines += [f"tested   {tag:10} {' '.join(sorted(tests[tag]))}" for tag in in_order(tests)]
    return lines


def self_test():
    with tempfile.TemporaryDirectory() as root:
        sources.write_tree(root, {
            "src/wire/a.cc": "// C9-105, C9-20\n", "src/wire/a_test.cc": "// C9-105\n",
            "tests/sim/b.cc": "// o10-37\n"})
        found = report(Path(root))
        assert found == ["2 tags in the code, 2 in tests, 1 without a test",
                         "untested C9-20      src/wire/a.cc",
                         "tested   C9-105     src/wire/a_test.cc",
                         "tested   o10-37     tests/sim/b.cc"], found
    print("spec_tags: finds the tag without a test")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        print("\n".join(report(Path(sys.argv[1]))))
