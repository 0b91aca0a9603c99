#!/usr/bin/env python3
"""Fails when a file of src/ includes a folder or a system header that it may not know about.

Usage: check_layers.py ROOT | check_layers.py --self-test

MAY_INCLUDE is the architecture. The softhca_library(...) lines of src/*/CMakeLists.txt and the
folder table of ARCHITECTURE.md have to say the same; rows of folders that do not exist yet do
not count. Exit status 1 and one line per offence.
"""
import re
import sys
import tempfile
from pathlib import Path

import sources

MAY_INCLUDE = {
    "base":      [],
    "os":        ["base"],
    "trace":     ["base"],
    "local":     ["base", "os", "trace"],
    "wire":      ["base"],
    "faults":    ["base", "trace", "wire"],
    "link":      ["base", "os", "trace", "local", "wire", "faults"],
    "pcie":      ["base", "trace"],
    "transport": ["base", "trace", "wire"],
    "cm":        ["base", "trace", "wire"],
    "rsocket":   ["base"],
    "host":      ["base", "os", "trace", "local", "faults", "pcie"],
    "nic":       ["base", "trace", "wire", "faults", "link", "pcie", "transport"],
    "driver":    ["base", "os", "trace", "local", "wire", "faults", "link", "pcie", "transport",
                  "cm", "host", "nic"],
    "model":     ["base", "trace"],
    "sim":       ["base", "trace", "wire", "faults", "link", "pcie", "host", "nic", "driver",
                  "model"],
    "abi":       ["base", "os", "trace", "local", "wire", "cm", "rsocket", "driver"],
    "cli":       ["base", "os", "trace", "local", "wire", "faults", "link", "driver", "model",
                  "sim"],
}

# System headers that belong to certain folders: (prefixes, folders). Unit tests are exempt.
OWNED = [
    (("infiniband/", "rdma/"), {"abi"}),
    (("sys/socket.h", "sys/un.h", "sys/uio.h", "net/", "arpa/", "ifaddrs.h", "linux/", "asm/"),
     {"os"}),
    (("netdb.h",), {"os", "abi"}),   # rdma_getaddrinfo is getaddrinfo in other words
    (("netinet/",), {"os", "abi"}),  # rsockets have the options of TCP
    (("sys/mman.h", "sys/epoll.h", "sys/eventfd.h", "sys/timerfd.h", "sys/signalfd.h", "poll.h",
      "sys/syscall.h", "sys/ioctl.h", "sys/random.h", "sys/resource.h", "sys/prctl.h",
      "sys/wait.h", "sched.h", "syscall.h", "ucontext.h"), {"os"}),
    (("time.h", "sys/time.h", "signal.h", "csignal"), {"os"}),
    (("unistd.h", "fcntl.h", "sys/stat.h", "sys/types.h"), {"os", "abi", "cli"}),
    (("errno.h", "cerrno"), {"os", "local", "abi", "cli"}),
    (("pthread.h",), {"os", "abi"}),
    (("iostream", "CLI/", "nlohmann/"), {"cli"}),
    (("random", "ctime"), set()),  # base/prng.h and base/clock.h instead
]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.M)
LIBRARY = re.compile(r"^\s*softhca_library\(\s*([a-z]+)([a-z\s]*)\)", re.M)
ROW = re.compile(r"^\|\s*`?([a-z]+)/?`?\s*\|.*\|([^|]*)\|\s*$", re.M)


def cycle(table):
    """The folders of a cycle in `table`, or nothing."""
    done, path = set(), []

    def visit(folder):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder not in done:
            path.append(folder)
            for below in table[folder]:
                found = visit(below)
                if found:
                    return found
            path.pop()
            done.add(folder)
        return []

    for folder in table:
        found = visit(folder)
        if found:
            return found
    return []


def include_offences(src):
    for file in sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cc", ".c")):
        folder, test = file.relative_to(src).parts[0], sources.is_test(file)
        if folder not in MAY_INCLUDE:
            yield f"{file}: folder '{folder}' is not in the table"
            continue
        text = sources.read(file)
        for found in INCLUDE.finditer(text):
            quote, name = found.groups()
            where = f"{file}:{sources.line_of(text, found.start(1))}"
            if quote == '"':
                target = name.split("/")[0]
                if "/" not in name:
                    yield f"{where}: write the folder: \"{folder}/{name}\""
                elif target not in MAY_INCLUDE:
                    yield f"{where}: unknown folder '{target}'"
                elif target != folder and target not in MAY_INCLUDE[folder]:
                    yield f"{where}: {folder}/ may not include {target}/"
            elif not test:
                for prefixes, owners in OWNED:
                    if folder not in owners and any(matches(name, p) for p in prefixes):
                        yield f"{where}: <{name}> belongs to {' '.join(sorted(owners)) or 'nobody'}"


def matches(name, prefix):
    return name.startswith(prefix) if prefix.endswith("/") else name == prefix


def existing(src):
    return {path.parent.name for path in src.glob("*/CMakeLists.txt")}


def cmake_offences(src):
    present = existing(src)
    for folder in sorted(present):
        file = src / folder / "CMakeLists.txt"
        found = LIBRARY.search(sources.read(file))
        if folder not in MAY_INCLUDE:
            yield f"{file}: folder '{folder}' is not in the table"
        elif not found or found.group(1) != folder:
            yield f"{file}: no softhca_library({folder} ...)"
        else:
            said = set(found.group(2).split())
            yield from differences(file, folder, said, present)


def architecture_offences(page, present):
    if not page.exists():
        return
    rows = {name: cell for name, cell in ROW.findall(sources.read(page)) if name in MAY_INCLUDE}
    for folder in sorted(present & MAY_INCLUDE.keys() - rows.keys()):
        yield f"{page}: the folder table has no row for {folder}"
    for folder, cell in rows.items():
        said = set(re.findall(r"[a-z]+", cell))
        if said != {"all", "above"}:
            yield from differences(page, folder, said, present)


def differences(file, folder, said, present):
    may = {name for name in MAY_INCLUDE[folder] if name in present}
    for name in sorted(said - set(MAY_INCLUDE[folder])):
        yield f"{file}: {folder}/ may not include {name}/"
    for name in sorted(may - said):
        yield f"{file}: {folder}/ may include {name}/, but it is not listed"


def offences(root):
    src = root / "src"
    loop = cycle(MAY_INCLUDE)
    if loop:
        yield "cycle: " + " -> ".join(loop)
    yield from include_offences(src)
    yield from cmake_offences(src)
    yield from architecture_offences(root / "ARCHITECTURE.md", existing(src))


GOOD = {
    "src/base/CMakeLists.txt": "softhca_library(base )\n",
    "src/trace/CMakeLists.txt": "softhca_library(trace base)\n",
    "src/wire/CMakeLists.txt": "softhca_library(wire base)\n",
    "src/wire/bth.cc": '#include "wire/bth.h"\n#include <vector>\n#include "base/bytes.h"\n',
    "src/wire/bth_test.cc": "#include <time.h>\n",
    "ARCHITECTURE.md": "| base | words | – |\n| trace | events | base |\n| wire | bytes | base |\n",
}
BAD = [  # (file, text, what has to be said about it)
    ("src/wire/bad.cc", '#include "link/link.h"\n', "wire/ may not include link/"),
    ("src/wire/bad_test.cc", '#include "link/link.h"\n', "wire/ may not include link/"),
    ("src/wire/bad.cc", '#include "bth.h"\n', "write the folder"),
    ("src/wire/bad.cc", '#include "nowhere/bth.h"\n', "unknown folder"),
    ("src/wire/bad.cc", "  #  include <netinet/in.h>\n", "<netinet/in.h> belongs to abi os"),
    ("src/wire/bad.h", "#include <infiniband/verbs.h>\n", "belongs to abi"),
    ("src/wire/bad.h", "#include <random>\n", "belongs to nobody"),
    ("src/odd/odd.h", "#pragma once\n", "folder 'odd' is not in the table"),
    ("src/wire/CMakeLists.txt", "softhca_library(wire base trace)\n", "may not include trace/"),
    ("src/wire/CMakeLists.txt", "softhca_library(wire)\n", "not listed"),
    ("src/wire/CMakeLists.txt", "add_library(x)\n", "no softhca_library"),
    ("ARCHITECTURE.md", "| base | words | – |\n| trace | x | base |\n", "no row for wire"),
    ("ARCHITECTURE.md", GOOD["ARCHITECTURE.md"].replace("bytes | base", "bytes | base trace"),
     "wire/ may not include trace/"),
]


def self_test():
    assert not cycle(MAY_INCLUDE)
    assert cycle({"a": ["b"], "b": ["a"]}) == ["a", "b", "a"]
    for name, text, wanted in [(None, None, None)] + BAD:
        with tempfile.TemporaryDirectory() as root:
            sources.write_tree(root, {**GOOD, **({name: text} if name else {})})
            found = list(offences(Path(root)))
            if not wanted:
                assert not found, found
            else:
                assert any(wanted in line for line in found), (name, text, found)
    print(f"check_layers: catches {len(BAD)} kinds of offence")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        complaints = list(offences(Path(sys.argv[1])))
        print("\n".join(complaints), end="\n" if complaints else "")
        sys.exit(1 if complaints else 0)
