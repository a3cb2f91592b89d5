# SPDX-License-Identifier: BSD-3-Clause
"""Which frames of a stack a reader wants to see: the line to blame first.

The distributions import nothing of each other, so each has a link to this file in its package;
sdists and wheels carry its content (tests/repo/test_shared_files.py).
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

Frame = tuple[str, int, str]  # file, line, function

_IS_PYTHON = re.compile(r"\.pyw?$|^<(?!frozen |unknown)|^Cell |ipykernel|ipython-input")
# Of torch (installed, or built in its source tree), of libraries and of the interpreter.
_OF_TORCH = re.compile(
    r"(^|/)torch/(_\w+|nn|optim|autograd|utils|distributed|fx|cuda|amp|func|ao|jit|"
    r"sparse|fft|linalg|random|functional|hub|library|overrides|serialization|storage|tensor)"
    r"(/|\.py$)"
    r"|(^|/)torchinductor_[^/]+/"  # what its compiler wrote
    # The package, and not programs in a checkout of that name.
    r"|/torch_npusim/(_\w+\.py$|(as_cuda|cli|cpp_extension|cuda_alias|distributed|fit|inductor|"
    r"inside|integrations|npusim|patches|profiling|sim|testing|triton_interpreter|truth)(/|\.py$))"
)
_OF_LIBRARY = re.compile(
    r"/(site|dist)-packages/|(^|/)lib/python[0-9.]+/|^<frozen |/(_?pytest|pluggy|xdist|unittest)/"
    r"|/bin/[^/]+$|(^|/)runpy\.py$"
    # The standard library of Windows has no folder with a version.
    r"|^[a-z]:/.*/(c?python-?\d[^/]*|\w*conda\d*|envs/[^/]+)/lib/",
    re.IGNORECASE,
)
_NODE = re.compile(r"(\w+Backward\d*|AccumulateGrad)(?:::apply|\()")
_OPERATOR = re.compile(r"at::_ops::(\w+?)(?:::call|::redispatch)\(")


@lru_cache(maxsize=1 << 16)
def rank_of(file: str, foreign: tuple[str, ...] = ()) -> int:
    """Return 0 for the program's own files, 1 for a library's, 2 for torch's, 3 for C and C++.

    Args:
        file: as the stack names it.
        foreign: beginnings of files that count as torch's.
    """
    if not _IS_PYTHON.search(file):
        return 3
    file = file.replace("\\", "/")  # of Windows
    if file.startswith(foreign) or _OF_TORCH.search(file):
        return 2
    return 1 if _OF_LIBRARY.search(file) else 0


def to_blame(frames: Iterable[Frame], foreign: tuple[str, ...] = ()) -> list[Frame]:
    """Return the frames of one kind, innermost first: the program's own, where there are any.

    Where there are none, those of libraries; then those of torch's Python. A stack of C++ alone,
    as a backward pass has, becomes the node of the graph and the operator in it, where it names
    them.

    Args:
        frames: of a stack, innermost first.
        foreign: beginnings of files that count as torch's.
    """
    all = list(frames)
    ranks = [rank_of(frame[0], foreign) for frame in all]
    least = min(ranks, default=3)
    if least < 3:
        return [frame for frame, rank in zip(all, ranks, strict=True) if rank == least]
    return _of_cpp(all)


def to_act_on(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames to blame, behind the innermost one of an installed library if one is there.

    A line of the program calls much of a library; the library's own function says which part.

    Args:
        frames: of a stack, innermost first.
    """
    all = list(frames)
    blamed = to_blame(all)
    for frame in all:
        rank = rank_of(frame[0])
        if rank == 1 and "-packages/" in frame[0].replace("\\", "/"):
            return [frame, *(other for other in blamed if other != frame)]
        if rank == 0:
            break
    return blamed


def file_line(file: str, line: int) -> str:
    """Return "file:line" for a reader: a file below the current directory from there."""
    return f"{short_path(file)}:{line}"


def short_path(file: str) -> str:
    """Return a path below the current directory from there, as `python train.py` names it.

    Python itself makes the name of a script absolute. Any other path stays as it is.
    """
    try:
        folder = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed
        return file
    return file.removeprefix(folder) if folder != os.sep else file


def matching(frames: Sequence[Frame], pattern: str) -> list[Frame]:
    """Return the frames whose "file:line function" a regular expression finds.

    Raises:
        ValueError: If it is none.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as problem:
        raise ValueError(f"{pattern!r} is no regular expression: {problem}") from None
    return [frame for frame in frames if wanted.search(f"{frame[0]}:{frame[1]} {frame[2]}")]


def _of_cpp(frames: list[Frame]) -> list[Frame]:
    for pattern, words in ((_NODE, "{} of a backward pass"), (_OPERATOR, "operator {}")):
        for _, _, function in frames:
            if found := pattern.search(function):
                return [("C++", 0, words.format(found[1]))]
    return without_unwinder(frames)[:1]


def without_unwinder(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without those of C++ that recorded the stack, or have no name."""
    recorders = ("torch::CapturedTraceback", "torch::cuda::", "c10::")
    return [
        frame
        for frame in frames
        if rank_of(frame[0]) < 3
        or (
            frame[2] not in ("??", "")
            and "unwind" not in frame[2]
            and not frame[2].startswith(recorders)
        )
    ]
