#!/usr/bin/env python3
"""Fails when a library is not the guest in other people's programs that it has to be.

Usage: check_symbols.py LIBRARY SYMBOLS_FILE SONAME

Exactly the symbols of the file are visible, with their versions; the library has its SONAME and the
plain link beside it, needs no C++ run time of the host's, is never unloaded and binds at once.
"""
import re
import subprocess
import sys
from pathlib import Path


def output(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True, timeout=120).stdout


def exported(library):
    for line in output("nm", "-D", "--defined-only", "--with-symbol-versions",
                       str(library)).splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind != "A":  # the nodes themselves
            yield name


def expected(file):
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line


def complaints(library, symbols, soname):
    has, wants = set(exported(library)), set(expected(symbols))
    yield from (f"missing: {name}" for name in sorted(wants - has))
    yield from (f"not expected: {name}" for name in sorted(has - wants))
    dynamic = output("readelf", "-dW", str(library))
    if f"soname: [{soname}]" not in dynamic:
        yield f"its SONAME is not {soname}"
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if re.match(r"lib(stdc\+\+|gcc_s|c\+\+)", needed):
            yield f"needs {needed} of the host"
    for flag in ("NOW", "NODELETE"):
        if not re.search(rf"Flags:.*\b{flag}\b", dynamic):
            yield f"is not linked with {flag}"
    link = library.parent / (soname.split(".so")[0] + ".so")
    for beside in (link, library.parent / soname):
        if not beside.exists() or beside.resolve() != library.resolve():
            yield f"{beside} does not lead to it"


if __name__ == "__main__":
    found = list(complaints(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
