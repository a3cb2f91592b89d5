# SPDX-License-Identifier: BSD-3-Clause
"""Comments that name a file of this repository: the file is there."""

import re

from repo.sources import CPP, LAYERS, ROOT, shown, sources

# `backend/clock.h`, `docs/understand/model.md`: a path that begins in one of our folders.
OURS = "|".join([*LAYERS, "docs"])
NAMED = re.compile(rf"(?<![\w/.<-])(?:{OURS})/[\w/.-]*\.(?:h|cpp|py|pyi|md|toml|txt)\b")
# `clock.h` alone, in a comment of C++: a neighbour, or a file of the project by its only name.
ALONE = re.compile(r"(?<![\w/.<*-])[a-z_]+\.(?:h|cpp|py)\b(?!/)")
ELSEWHERE = {"fbgemm.h", "library.h", "file.py", "mine.py"}  # of torch, and of a user


def comments(path):
    """Yields (number, text) of the lines that are, or end in, a comment of C++."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if (start := line.find("//")) >= 0:
            yield number, line[start:]


def missing(text, names):
    """Returns what `text` names and nobody has."""
    found = [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    alone = ALONE.findall(NAMED.sub("", text))
    return found + [name for name in alone if name not in names | ELSEWHERE]


def test_files_that_comments_name_exist():
    names = {path.name for path in sources()}
    wrong = [
        f"{shown(path, number)}: {name}"
        for path in sources("backend", "allocator", "csrc", "lab", suffixes=CPP)
        for number, text in comments(path)
        for name in missing(text, names)
    ]
    assert wrong == []


def test_a_file_that_is_gone_is_found():
    assert missing("// see gone_long_ago.h and backend/gone.cpp", {"here.h"}) == [
        "backend/gone.cpp",
        "gone_long_ago.h",
    ]
    assert missing("// see here.h, backend/clock.h", {"here.h"}) == []
