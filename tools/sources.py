"""What the checks share: which files there are, and C++ text with comments and strings blanked."""
import re
from pathlib import Path

# Comments, raw strings, strings and characters. Digit separators (1'000) are not characters.
_OPAQUE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r'|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.S)


def cpp_files(root):
    """Every C and C++ file of src/, tests/ and bench/ below `root`, in order."""
    return [path for top in ("src", "tests", "bench") for path in sorted((root / top).rglob("*"))
            if path.suffix in (".h", ".cc", ".c") and path.is_file()]


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def is_test(path):
    """Unit tests (x_test.cc), and what only they include (test_x.h)."""
    return path.stem.endswith("_test") or path.stem.startswith("test_")


def blanked(text):
    """`text` with comments and literals turned into spaces; every line keeps its number."""
    return _OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def write_tree(root, contents):
    """Makes the files of `contents` (path -> text) below `root`: fixtures of the self-tests."""
    for name, text in contents.items():
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
