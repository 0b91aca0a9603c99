#!/usr/bin/env python3
"""Holds the cases (public reports of what other RDMA stacks got wrong) against the tests: each is
cited by a test, as "CASES C17", or answered in cases.txt; and cases.txt answers no case that a
test cites.

usage: check_cases.py ROOT
"""
import pathlib
import re
import sys

CASES = """
C02 C03 C04 C08 C11 C13 C15 C16 C17 C18 C19 C21 C22 C23 C25
C26 C28 C29 C30 C31 C32 C35 C36 C37 C38 C41 C42 C43 C44 C45
C48 C49 C50 C53 C55 C58 C59 C60 C61 C62 C63 C64 C65 C66 C67
C69 C70 C71 C73 C74 C75 C77 C80 C81 C82 C83 C84 C85 C88
""".split()


def main():
    root = pathlib.Path(sys.argv[1])
    tests = [path for folder in ("src", "tests") for path in (root / folder).rglob("*")
             if path.name.endswith("_test.cc") or path.suffix in (".sh", ".c")
             or (folder == "tests" and path.suffix in (".cc", ".h"))]
    cited = set()
    for path in tests:
        cited |= set(re.findall(r"\bC[0-9]{2}\b", path.read_text(encoding="utf-8")))
    with open(root / "tests/conformance/cases.txt", encoding="utf-8") as lines:
        answered = {line.split()[0] for line in lines if not line.startswith("#")}
    wrong = [f"{case}: no test cites it and cases.txt does not answer it"
             for case in CASES if case not in cited | answered]
    wrong += [f"{case}: answered in cases.txt, and a test cites it"
              for case in sorted(answered & cited)]
    wrong += [f"{case}: answered in cases.txt, and there is no such case"
              for case in sorted(answered - set(CASES))]
    for line in wrong:
        print(line)
    print(f"{len(CASES)} cases: {len(cited & set(CASES))} cited by tests, {len(answered)} answered")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
