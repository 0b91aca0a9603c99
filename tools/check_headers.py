#!/usr/bin/env python3
"""Fails when a header of src/ does not compile alone.

Usage: check_headers.py ROOT [COMPILER] | check_headers.py --self-test [COMPILER]

Each header is the only line of a translation unit, twice, as C++20 with the project's warnings.
"""
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sources

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Werror",
         "-DFMT_HEADER_ONLY=1", "-x", "c++", "-"]


def complaint(compiler, src, header):
    """What the compiler says about `header` on its own; empty when it is content."""
    name = header.relative_to(src).as_posix()
    result = subprocess.run([compiler, "-I", str(src), *FLAGS], check=False, timeout=300, text=True,
                            input=f'#include "{name}"\n#include "{name}"\n', capture_output=True)
    return f"{name} does not compile alone:\n{result.stderr}" if result.returncode else ""


def offences(root, compiler):
    src = root / "src"
    headers = sorted(src.rglob("*.h"))
    if not headers:
        return [f"{src}: no headers"]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        said = pool.map(lambda header: complaint(compiler, src, header), headers)
        return [line for line in said if line]


def self_test(compiler):
    good = {"src/base/a.h": "// A: x.\n#pragma once\n#include <cstdint>\nstd::uint8_t a();\n"}
    bad = {"src/base/b.h": "// B: x.\n#pragma once\nstd::uint8_t b();\n",
           "src/base/c.h": "// C: no guard.\nstruct C {};\n"}
    with tempfile.TemporaryDirectory() as root:
        assert offences(Path(root), compiler), "an empty tree passes"
        sources.write_tree(root, good)
        assert not offences(Path(root), compiler)
        sources.write_tree(root, bad)
        found = offences(Path(root), compiler)
        assert len(found) == 2 and "base/b.h" in found[0] and "base/c.h" in found[1], found
    print("check_headers: catches a missing include and a missing guard")


if __name__ == "__main__":
    chosen = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("CXX", "g++")
    if sys.argv[1] == "--self-test":
        self_test(chosen)
    else:
        complaints = offences(Path(sys.argv[1]), chosen)
        print("\n".join(complaints), end="\n" if complaints else "")
        sys.exit(1 if complaints else 0)
