#!/usr/bin/env python3
"""Checks the include ladder and a few habits that no compiler checks.

A folder of src/oasis (a room) may include itself and the rooms above it in LADDER, and its CMakeLists.txt must name
every room that it includes. Nothing under src/ includes apps/, bench/ or tests/. Oracles (*_ref.h) are included by tests
and oracles alone. No file holds a path of the machine it was written on.

    tools/check_ladder.py [ROOT]      exit status 1 and one line a fault, if there is any
    tools/check_ladder.py --self-test
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Top first; the order of src/oasis/CMakeLists.txt.
LADDER = ["base", "device", "kernels", "kv", "lookahead", "text", "model", "draft", "engine", "serve"]
# Absolute paths that mean one machine. Put together so that this file does not hold them.
FOREIGN_PATHS = re.compile("|".join("/" + p for p in (r"work/(main|shared|\.)", r"tmp/(s|b-\w+|venv)/", r"root/", r"home/\w+/")))
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
SOURCES = {".h", ".cc", ".cu", ".cuh"}


def tracked_files(root):
    """What git would carry: known files and those that it does not ignore; without git, every file."""
    out = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, text=True)
    if out.returncode == 0:
        return [root / name for name in out.stdout.split("\0") if name and (root / name).is_file()]
    return [p for p in root.rglob("*") if p.is_file()]


def room_of(path):
    parts = path.parts
    return parts[2] if len(parts) > 3 and parts[:2] == ("src", "oasis") else None


def declared_deps(root):
    """room -> the rooms its CMakeLists.txt names after DEPS."""
    deps = {}
    for cmake in root.glob("src/oasis/*/CMakeLists.txt"):
        text = re.sub(r"#.*", "", cmake.read_text())
        call = re.search(r"oasis_room\(\s*(\w+)([^)]*)\)", text)
        if call:
            listed = re.search(r"\bDEPS\b([\w\s]*?)(\bLIBS\b|$)", call.group(2))
            deps[call.group(1)] = set(listed.group(1).split()) if listed else set()
    return deps


def faults_of_include(path, line, target, deps):
    where = f"{path}:{line}"
    room = room_of(path)
    if target.endswith("_ref.h") and not re.search(r"(_|^)(test|ref|bench|test_util)\.(cc|h)$", path.name):
        yield f"{where}: {target} is an oracle: only tests and oracles may include it"
    if room is None:
        return
    if target.split("/")[0] in ("apps", "bench", "tests"):
        yield f"{where}: src/ may not include {target}"
    if not target.startswith("oasis/"):
        return
    other = target.split("/")[1]
    if other not in LADDER:
        yield f"{where}: {target}: no room '{other}' in the ladder {' > '.join(LADDER)}"
    elif LADDER.index(other) > LADDER.index(room):
        yield f"{where}: '{room}' may not include '{other}', which stands below it in {' > '.join(LADDER)}"
    elif other != room and room in deps and other not in deps[room]:
        yield f"{where}: '{room}' includes '{other}' but src/oasis/{room}/CMakeLists.txt does not list it in DEPS"


def faults(root):
    deps = declared_deps(root)
    for room, listed in sorted(deps.items()):
        where = f"src/oasis/{room}/CMakeLists.txt"
        if room not in LADDER:
            yield f"{where}: no room '{room}' in the ladder"
            continue
        for dep in sorted(listed):
            if dep not in LADDER[:LADDER.index(room)]:
                yield f"{where}: '{room}' may not depend on '{dep}', which does not stand above it"
    for file in tracked_files(root):
        path = file.relative_to(root)
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # data
        for number, line in enumerate(lines, 1):
            if FOREIGN_PATHS.search(line):
                yield f"{path}:{number}: holds a path of one machine: {line.strip()[:100]}"
        if path.suffix not in SOURCES:
            continue
        if path.parts[:2] == ("src", "oasis") and (room_of(path) or "?") not in LADDER:
            yield f"{path}: lies in no room of the ladder {' > '.join(LADDER)}"
            continue
        for number, line in enumerate(lines, 1):
            include = INCLUDE.match(line)
            if include:
                yield from faults_of_include(path, number, include.group(1), deps)


def self_test():
    def check(expected, files):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            found = list(faults(root))
            assert len(found) == len(expected) and all(e in f for e, f in zip(expected, found)), (expected, found)

    kv = {"src/oasis/kv/CMakeLists.txt": "# rooms\noasis_room(kv DEPS base LIBS x::y)\n"}
    check([], {**kv, "src/oasis/kv/a.cc": '#include "oasis/base/b.h"\n#include "oasis/kv/c.h"\n#include <vector>\n'})
    check(["'kv' may not include 'engine'"], {**kv, "src/oasis/kv/a.cc": '#include "oasis/engine/b.h"\n'})
    check(["does not list it in DEPS"], {**kv, "src/oasis/kv/a.cc": '#include "oasis/device/b.h"\n'})
    check(["no room 'vk'"], {**kv, "src/oasis/kv/a.h": '#  include "oasis/vk/b.h"\n'})
    check(["lies in no room"], {"src/oasis/extra/a.cc": ""})
    check(["may not depend on 'draft'"], {"src/oasis/model/CMakeLists.txt": "oasis_room(model\n  DEPS base draft)"})
    check(["src/ may not include apps/x.h"], {"src/oasis/kv/a.cc": '#include "apps/x.h"\n'})
    check(["is an oracle"], {"src/oasis/kernels/a/a_cpu.cc": '#include "oasis/kernels/a/a_ref.h"\n'})
    check([], {"src/oasis/kernels/a/a_test.cc": '#include "oasis/kernels/a/a_ref.h"\n'})
    check([], {"apps/oasis/main.cc": '#include "oasis/serve/x.h"\n'})
    check(["README.md:2: holds a path"], {"README.md": "fine\nsee /" + "work/main/x\n"})
    check([], {"README.md": "cmake -B /tmp/build\n"})
    print("check_ladder: the self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent).resolve()
    found = list(faults(root))
    print("\n".join(found) if found else f"check_ladder: {' > '.join(LADDER)}: no fault")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
