# SPDX-License-Identifier: BSD-3-Clause
"""One meaning per word in the C++ of backend/ and csrc/: where a word may name a declaration."""

import re

import pytest
from repo.sources import shown, sources

# A declaration with the word in its name -> the files that may have one, and the word's meaning.
WORDS = {
    r"\bvoid note_\w+\(": ("observers hear of it", ["backend/observer", "csrc/observers/"]),
    r"\bstruct \w*Record\b": ("a message to observers", ["backend/observer.h"]),
    r"\b(?:struct|class) \w*Rule\w*\b": ("a rule of CUDA", ["csrc/cuda_rules/"]),
    r"\b(?:struct|class) \w*Polic(?:y|ies)\b": (
        "places blocks",
        ["csrc/python/python_policy", "csrc/runtime/allocator_config"],
    ),
    r"\b(?:struct|class) \w*Plan\w*\b": ("of the laboratory", []),
    r"\b(?:struct|class) \w*Executor\b": ("of the laboratory", []),
}
ALSO = {"backend/pinned_memory.h", "backend/pinned_memory.cpp"}  # note_pinned_allocations()


@pytest.mark.parametrize("declaration", WORDS)
def test_word_means_one_thing(declaration):
    meaning, places = WORDS[declaration]
    wrong = [
        shown(path, number)
        for path in sources("backend", "csrc", suffixes=(".h", ".cpp"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(declaration, line.split("//")[0])
        and not shown(path).startswith(tuple(places))
        and shown(path) not in ALSO
    ]
    assert wrong == [], f"this word means: {meaning}"
