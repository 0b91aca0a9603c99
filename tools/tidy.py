#!/usr/bin/env python3
"""Fails when a source file breaks a limit or a habit of STYLE.md.

Usage: tidy.py ROOT | tidy.py --self-test

Limits only ever tighten. Exit status 1 and one line per offence.
"""
import re
import sys
import tempfile
from pathlib import Path

import sources

LINE_COLUMNS = 100
FUNCTION_LINES = 70
FILE_LINES = 600     # tests excepted
FOLDER_PARTS = 25    # tests excepted; a header and its .cc are one part
MORE_PARTS = {"src/os": 35}  # a wrapper for each thing of the kernel, most of them on their own
README_LINES = 25

# Words that say nothing about what a thing is. If a name needs one, the thing has no subject yet.
BANNED = {"manager", "handler", "helper", "helpers", "util", "utils", "misc", "common", "impl",
          "data", "info", "process", "do", "handle"}
BANNED_VERBS = {"handle", "process", "do"}  # as the first word of a function

TYPE = re.compile(r"\b(?:class|struct|enum class|enum|union)\s+"
                  r"(?:\[\[\w+\]\]\s*|alignas\([^)]*\)\s*)?"
                  r"([A-Z]\w*)\s*(?:final\s*)?(?::[^:;{}][^;{}]*)?\{")
CONTAINER = re.compile(r'(?:^|\s)(?:namespace|extern|class|struct|union|enum)\b[^()=]*$')
FUNCTION_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
OPEN_QUESTION = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def words(name):
    """The words of a snake_case or PascalCase name, in lower case."""
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def functions(text):
    """(name, first line, lines) of every function body at namespace or class scope of `text`."""
    code = re.sub(r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*", lambda m: re.sub(r"[^\n]", " ", m.group()),
                  sources.blanked(text), flags=re.M)
    containers, start, depth, began = [], 0, 0, None
    for found in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:(?!:)", code):
        mark, offset = found.group()[0], found.start()
        if depth:  # inside a body: only its end matters
            depth += {"{": 1, "}": -1}.get(mark, 0)
            if depth == 0 and began is not None:
                rest = code[offset + 1:].lstrip()
                if not rest.startswith((",", "{")):  # else: a brace of an initialiser list
                    head = code[began:offset]
                    name = FUNCTION_NAME.search(head)
                    first = sources.line_of(code, began)
                    yield (name.group(1) if name else "?", first,
                           sources.line_of(code, offset) - first + 1)
                    start, began = offset + 1, None
            elif depth == 0:
                start = offset + 1
            continue
        if mark == "{":
            head = code[start:offset]
            if began is None and CONTAINER.search(head.strip()):
                containers.append(head)
                start = offset + 1
                continue
            depth = 1
            if began is None and "(" in head:
                began = start + len(head) - len(head.lstrip())
        elif began is None:
            if mark == "}" and containers:
                containers.pop()
            start = found.end()


def line_offences(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {LINE_COLUMNS}"
        if line != line.rstrip():
            yield f"{path}:{number}: white space at the end of the line"
        if "\t" in line:
            yield f"{path}:{number}: a tab"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"


def name_offences(path, text):
    for word in words(path.stem):
        if word in BANNED:
            yield f"{path}: '{word}' in a file name says nothing"
    code = sources.blanked(text)
    for found in TYPE.finditer(code):
        name = found.group(1)
        banned = BANNED - {"info"} if name.endswith("Info") else BANNED
        for word in words(name):
            if word in banned or (word == "base" and name.endswith("Base")):
                where = sources.line_of(code, found.start())
                yield f"{path}:{where}: '{word}' in {name} says nothing"


def cpp_offences(path, test, text):
    yield from line_offences(path, text)
    yield from name_offences(path, text)
    for found in OPEN_QUESTION.finditer(text):
        where = sources.line_of(text, found.start())
        yield f"{path}:{where}: an open question; finish it, or say in prose what is missing"
    for name, first, lines in functions(text):
        if lines > FUNCTION_LINES:
            yield f"{path}:{first}: {name} has {lines} lines, at most {FUNCTION_LINES}"
        if name.split("_")[0] in BANNED_VERBS:
            yield f"{path}:{first}: {name}: say what it does"
    lines = text.count("\n")
    if lines > FILE_LINES and not test:
        yield f"{path}: {lines} lines, at most {FILE_LINES}"
    if path.suffix == ".h":
        if not text.startswith("// "):
            yield f"{path}: a header opens with what it is"
        if not re.search(r"^#pragma once$", text, re.M):
            yield f"{path}: no #pragma once"


def folder_offences(root, files):
    parts = {}
    for path in files:
        if path.relative_to(root).parts[0] == "src" and not sources.is_test(path):
            parts.setdefault(path.parent, set()).add(path.stem)
    for folder, stems in sorted(parts.items()):
        limit = MORE_PARTS.get(folder.relative_to(root).as_posix(), FOLDER_PARTS)
        if len(stems) > limit:
            yield f"{folder}: {len(stems)} parts, at most {limit}"
    for folder in sorted({root / "src" / path.relative_to(root).parts[1] for path in parts}):
        readme = folder / "README.md"
        if not readme.exists():
            yield f"{folder}: no README.md"
        elif sources.read(readme).count("\n") > README_LINES:
            yield f"{readme}: more than {README_LINES} lines"


def include_offences(root, files):
    """Headers of src/ that no other file includes, and product code that includes test code."""
    included = set()
    for path in files:
        for name in re.findall(r'#\s*include\s*"([^"]+)"', sources.read(path)):
            included.add(name)
            product = path.relative_to(root).parts[0] == "src" and not sources.is_test(path)
            if product and sources.is_test(Path(name)):
                yield f"{path}: {name} is for tests"
    for path in files:
        relative = path.relative_to(root)
        if path.suffix == ".h" and relative.parts[0] == "src":
            name = relative.relative_to("src").as_posix()
            if name not in included:
                yield f"{path}: nobody includes it"


def offences(root):
    files = sources.cpp_files(root)
    for path in files:
        test = sources.is_test(path) or path.relative_to(root).parts[0] == "tests"
        yield from cpp_offences(path, test, sources.read(path))
    for path in sorted((root / "tools").glob("*.py")):
        yield from line_offences(path, sources.read(path))
    yield from folder_offences(root, files)
    yield from include_offences(root, files)


def fixture_body(lines):
    return "".join(f"  use({n});\n" for n in range(lines))


HEADER = "// Bth: a header.\n#pragma once\n"
GOOD = {
    "src/wire/README.md": "# wire\n",
    "src/wire/bth.h": HEADER + "struct FaultInfo { int x; };\n",
    "src/wire/bth.cc": '#include "wire/bth.h"\nnamespace a::b {\nint f(int x,\n      int y) {\n'
                       + fixture_body(66) + '}\nF::F() : x_{1}, y_{2} {\n' + fixture_body(68)
                       + '}\nconst int k[] = {1, 2};  // "{"\n}\n',
}
BAD = [  # (file, text, what has to be said about it)
    ("src/wire/a.cc", "int x;" + " " * 95 + "// x\n", "columns"),
    ("src/wire/a.cc", "int x; \n", "white space at the end"),
    ("src/wire/a.cc", "\tint x;\n", "a tab"),
    ("src/wire/a.cc", "int x;", "no newline"),
    ("src/wire/a.cc", "// TODO later\n", "an open question"),
    ("src/wire/a.cc", "namespace {\nvoid long_one() {\n" + fixture_body(69) + "}\n}\n",
     "long_one has 71 lines"),
    ("src/wire/a.cc", "struct S {\n  S() : x_{1}, y_{2} {\n" + fixture_body(80) + "  }\n};\n",
     "S has 82 lines"),
    ("src/wire/a.cc", "TEST(A, B) {\n" + fixture_body(80) + "}\n", "TEST has 82 lines"),
    ("src/wire/a.cc", "int x;\n" * 601, "601 lines"),
    ("src/wire/a.cc", "void handle_packet() {}\n", "say what it does"),
    ("src/wire/a.cc", "class QueueManager final : public A {};\n", "'manager' in QueueManager"),
    ("src/wire/a.cc", "struct PageBase {};\n", "'base' in PageBase"),
    ("src/wire/string_utils.cc", "int x;\n", "'utils' in a file name"),
    ("src/wire/a.h", "#pragma once\n", "opens with what it is"),
    ("src/wire/a.h", "// A: x.\n", "no #pragma once"),
    ("src/wire/a.h", "// A: x.\n#pragma once\n", "nobody includes it"),
    ("src/wire/a.cc", '#include "wire/test_bench.h"\n', "is for tests"),
    ("src/link/a.cc", "int x;\n", "no README.md"),
    ("src/wire/README.md", "x\n" * 26, "more than 25 lines"),
]


def self_test():
    for name, text, wanted in [(None, None, None)] + BAD:
        with tempfile.TemporaryDirectory() as root:
            sources.write_tree(root, {**GOOD, **({name: text} if name else {})})
            found = list(offences(Path(root)))
            if not wanted:
                assert not found, found
            else:
                assert any(wanted in line for line in found), (name, found)
    with tempfile.TemporaryDirectory() as root:
        sources.write_tree(root, {**GOOD, **{f"src/wire/f{n}.cc": "int x;\n" for n in range(25)}})
        assert any("26 parts" in line for line in offences(Path(root)))
    print(f"tidy: catches {len(BAD) + 1} kinds of offence")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        complaints = list(offences(Path(sys.argv[1])))
        print("\n".join(complaints), end="\n" if complaints else "")
        sys.exit(1 if complaints else 0)
