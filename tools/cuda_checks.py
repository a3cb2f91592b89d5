# SPDX-License-Identifier: BSD-3-Clause
"""Counts the checks in ATen's CUDA sources, and how many of them npusim has.

    python tools/cuda_checks.py SOURCES [--missing LIBRARY]
    python tools/cuda_checks.py SOURCES --page

SOURCES is PyTorch's source tree. A check is a TORCH_CHECK in a CUDA source, or a comparison of a
device with CUDA in a source that all devices share. Each check is one of:

    shared       its words, or its condition, are also in a source of the CPU, which runs here
    placement    it asks whether operands are on the device, as each command of npusim does
    row          its words are in the rule book or in npusim's own sources
    refused      it belongs to a part that npusim refuses by name
    not modelled none of these

Not counted are checks that fire in other builds only: without a library, for ROCm, for Windows.
The words decide, so a check without words counts by its condition. --missing lists the checks of a
library that are not modelled; --page writes the table into docs/use/what_it_catches.md.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "use" / "what_it_catches.md"
BEGIN, END = "<!-- checks -->", "<!-- /checks -->"

#: Library -> its folders below aten/src/ATen, without their own subfolders.
LIBRARIES = {
    "kernels of ATen": ("native/cuda",),
    "linear algebra (cuSOLVER, cuBLAS, MAGMA)": ("native/cuda/linalg",),
    "cuDNN": ("native/cudnn", "cudnn"),
    "sparse (cuSPARSE, cuSPARSELt)": ("native/sparse/cuda",),
    "attention": ("native/transformers/cuda", "native/transformers/cuda/flash_attn"),
    "nested tensors": ("native/nested/cuda",),
    "quantized": ("native/quantized/cuda", "native/quantized/cudnn"),
    "runtime (streams, graphs, BLAS handles)": ("cuda", "cuda/detail", "cuda/tunable"),
}
#: Files that stand for parts which npusim refuses by name: cuda_alias.LIMITS, exclusions.md.
REFUSED = (
    "native/cuda/jit_utils.cpp",  # jiterator
    "native/transformers/cuda/flash_attn/flash_api.cpp",  # _flash_attention_forward
    "cuda/CUDAGreenContext.cpp",
    "cuda/detail/LazyNVRTC.cpp",
    "cuda/tunable/",
)
#: Folders of sources that every device shares, or that are the CPU's.
SHARED = ("native", "native/cpu", "native/sparse", "native/nested", "native/transformers")
SHARED += ("native/quantized", "native/quantized/cpu", "native/ao_sparse", "native/utils", ".")

_CHECK = re.compile(r"\bTORCH_CHECK(?:_[A-Z_]+)?\s*\(")
_DEVICE = re.compile(r"is_cuda\(\)|\bkCUDA\b|DeviceType::CUDA\b")
_OTHER_BUILD = re.compile(
    r"not compiled|not enabled for build|Windows|ROCm|ROCM|HIP\b|[Rr]equires? (?:CUDA|cuDNN) \d|"
    r"without|not built|CUDA version|to be built|: not supported$"
)
_PLACEMENT = re.compile(
    r"^!?[\w.>()-]+(?:\.|->)is_cuda\(\)(?:\|\|.*)?$|device\(\)==|get_device\(\)==|is_cuda\(\)&&"
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_MIN = 8  # letters of words that say which check it is


class Check(NamedTuple):
    """One check: where it is, its condition and its words."""

    file: str
    line: int
    condition: str
    words: tuple[str, ...]


def without_comments(text: str) -> str:
    """Returns C++ with its comments blank, lines kept."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0][0] == "/" else found[0]  # noqa: E731
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', blank, text, flags=re.DOTALL)


def arguments(text: str, start: int) -> list[str]:
    """Returns the arguments of the call whose first one begins at `start`."""
    found, depth, begin, at = [], 0, start, start
    while at < len(text):
        if text[at] == '"':
            at = _STRING.match(text, at).end() - 1 if _STRING.match(text, at) else at
        elif text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            if depth == 0:
                return [*found, text[begin:at]]
            depth -= 1
        elif text[at] == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
        at += 1
    return found


def squeezed(text: str) -> str:
    """Returns a text without spaces, for comparison."""
    return re.sub(r"\s+", "", text)


def words_of(texts: list[str]) -> tuple[str, ...]:
    """Returns the constant words in arguments: adjacent strings are one."""
    joined = (re.sub(r'"\s*"', "", text) for text in texts)
    words = (word for text in joined for word in _STRING.findall(text))
    return tuple(word.strip() for word in words if len(re.sub(r"\W", "", word)) >= _MIN)


def checks_of(source: Path, name: str) -> Iterator[Check]:
    """Yields the TORCH_CHECKs of a source."""
    text = without_comments(source.read_text(errors="replace"))
    for found in _CHECK.finditer(text):
        given = arguments(text, found.end())
        if given:
            line = text.count("\n", 0, found.start()) + 1
            yield Check(name, line, squeezed(given[0]), words_of(given[1:]))


def comparisons_of(source: Path, name: str) -> Iterator[Check]:
    """Yields the comparisons with CUDA in a source that devices share, with the words nearby."""
    lines = without_comments(source.read_text(errors="replace")).splitlines()
    for at, line in enumerate(lines):
        if _DEVICE.search(line) and "INTERNAL_ASSERT" not in line:
            yield Check(name, at + 1, squeezed(line), words_of(["".join(lines[at : at + 8])]))


def sources_in(aten: Path, folder: str, endings: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yields the sources of a folder, not of those below it."""
    if (aten / folder).is_dir():
        for source in sorted((aten / folder).iterdir()):
            if source.suffix in endings:
                yield source, source.relative_to(aten).as_posix()


class Judge:
    """Has npusim's side: checks of the sources that it runs, its rule book and its own words."""

    def __init__(self, aten: Path) -> None:
        self.words: set[str] = set()
        self.conditions: set[str] = set()
        for folder in SHARED:
            for source, name in sources_in(aten, folder, (".cpp", ".h")):
                for check in checks_of(source, name):
                    self.words.update(check.words)
                    self.conditions.add(check.condition)
        own = [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "torch_npusim").rglob("*.py")]
        own.append(ROOT / "torch_npusim" / "cuda_rules.csv")
        # Adjacent strings are one, whatever the language.
        texts = (re.sub(r'"\s*f?"', "", source.read_text()) for source in own)
        self.own = "\n".join(re.sub(r"\s+", " ", text) for text in texts)

    def verdict(self, check: Check) -> str:
        """Returns what npusim has of a check."""
        if check.file.startswith(REFUSED):
            return "refused"
        if _PLACEMENT.search(check.condition):
            return "placement"
        longest = max(check.words, key=len, default="")
        if any(word in self.words for word in check.words):
            return "shared"
        if longest and longest in self.own:
            return "row"
        if not check.words and check.condition in self.conditions:
            return "shared"
        return "not modelled"


def checks_by_library(aten: Path) -> dict[str, list[Check]]:
    """Returns the checks of each library, and the comparisons of shared sources."""
    found = {
        library: [
            check
            for folder in folders
            for source, name in sources_in(aten, folder, (".cu", ".cpp", ".cuh", ".h"))
            for check in checks_of(source, name)
            if not any(map(_OTHER_BUILD.search, check.words))
        ]
        for library, folders in LIBRARIES.items()
    }
    found["comparisons with CUDA in shared sources"] = [
        check
        for folder in SHARED
        for source, name in sources_in(aten, folder, (".cpp",))
        for check in comparisons_of(source, name)
    ]
    return found


VERDICTS = ("shared", "placement", "row", "refused", "not modelled")


def table(version: str, found: dict[str, list[Check]], judge: Judge) -> str:
    """Returns the table of the page."""
    lines = [
        f"Counted by `python tools/cuda_checks.py SOURCES --page` in PyTorch {version}'s sources.",
        "",
        "| library | checks | shared | placement | own row | refused | not modelled |",
        "|---|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for library, checks in found.items():
        counts = Counter(judge.verdict(check) for check in checks)
        total += counts
        row = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
        lines.append(f"| {library} | {len(checks)} | {row} |")
    row = " | ".join(str(total[verdict]) for verdict in VERDICTS)
    lines.append(f"| **all** | {sum(total.values())} | {row} |")
    return "\n".join(lines)


def main() -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="PyTorch's source tree")
    parser.add_argument("--missing", metavar="LIBRARY", help="list what is not modelled of it")
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    given = parser.parse_args()
    aten = given.sources / "aten" / "src" / "ATen"
    if not (aten / "native" / "cuda").is_dir():
        parser.error(f"{given.sources} has no aten/src/ATen/native/cuda")
    found, judge = checks_by_library(aten), Judge(aten)
    if given.missing:
        for library, checks in found.items():
            for check in checks if given.missing in library else ():
                if judge.verdict(check) == "not modelled":
                    print(f"{check.file}:{check.line}: {check.condition} {' '.join(check.words)}")
        return 0
    version = (given.sources / "version.txt").read_text().strip().partition("a")[0]
    text = table(version, found, judge)
    print(text)
    if given.page:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
