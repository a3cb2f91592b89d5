# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/experiments.md: questions, their commands, the answers, and why.

    python tools/bench/lab_experiments.py

The commands run in a folder with the traces of `npusim-lab generate`, which are made up, and the
recorded ones. Their output depends on no clock, so the page is the same everywhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "experiments.md"
RECORDED = ROOT / "lab" / "npusim_lab" / "recorded"

HEAD = """# Experiments

Questions about allocators, each answered by one command. This command writes the page:

```console
$ python tools/bench/lab_experiments.py
```

Traces are synthetic (`npusim-lab generate`; model sizes by arithmetic) or recorded from
real models on npusim. Unless stated otherwise, numbers are `over_max_live`: peak
reserved memory over peak live memory, never below 1. The device has no limit.
[lab.md](../use/lab.md) defines metrics and settings.
"""

FITS = "best-fit,first-fit,next-fit,tlsf,bins,buddy"
# Title, command, what the table says and why.
EXPERIMENTS = [
    (
        "Which fit is best, with the caching allocator's segments?",
        f"npusim-lab compare *.npt --metric over_max_live --policy {FITS},cuda-2.13",
        """All but the last buy segments like the CUDA caching allocator (`--arena cuda`, the
default). Best fit, first fit and tlsf then differ little; `cuda-2.13` is a best fit.
Next fit spreads short-lived blocks over all segments. Bins keep memory for its class,
and lose where sizes vary.

**Buddy wins where sizes vary** because it rounds to powers of two. A segment of 10 MiB
or more has the size of one request; rounded, it fits the next request too. Other
policies buy segments that fit only requests up to that size. Buddy loses on the
recorded models, whose tensors are smaller. The next table removes this effect.""",
    ),
    (
        "And in one arena that grows at its end?",
        f"npusim-lab compare *.npt --metric over_max_live --arena one --policy {FITS}",
        """One range compares the fits alone. Best and first fit are within a few percent of the
bound nearly everywhere; buddy pays for its rounding. Most fragmentation attributed to a
fit comes from the rule for segments. tlsf is best fit by size classes. tlsf may skip a
range of the request's own class, which costs a whole block where blocks are few and
large (`pytorch-193400`).""",
    ),
    (
        "What do quanta of 32, 256 and 512 bytes cost?",
        "npusim-lab compare *.npt --metric internal --policy "
        + ",".join(f"cuda-2.13,quantum_bytes:{n}" for n in (32, 256, 512)),
        """The metric is the share of active memory, at the peak, that was not requested. Model
tensors are large, so a quantum of 512 instead of 32 costs at most 1.4 %. The rest are
remainders of segments that the caching allocator does not split.""",
    ),
    (
        "What does a device without realloc cost?",
        "npusim-lab compare kv-cache.npt kv-realloc.npt --metric peak_reserved --policy "
        "best-fit,cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """`kv-cache` copies each cache to a larger one; `kv-realloc` frees the old one first.
Where memory is mapped or planned, the second copy costs its size, some 80 MiB or 7 %.
With the caching allocator's segments it costs nothing: idle segments for caches of
other sizes are a far larger loss.""",
    ),
    (
        "Bank conflicts with 8 banks",
        "npusim-lab compare *.npt --banks 8 --metric bank_conflicts --policy "
        "best-fit,tlsf,buddy,cuda-2.13,banked,banks:8",
        """The metric is the share of pairs, an allocation and one of the three before it, that
begin in the same of 8 banks of 512 bytes; chance gives 0.125. Sizes that are multiples
of banks times 512 bytes, common in large models, put everything in one bank under every
policy. Buddy rounds all sizes to such multiples. `banked` moves blocks by up to a few
banks.""",
    ),
    (
        "Bank conflicts with 16 banks",
        "npusim-lab compare *.npt --banks 16 --metric bank_conflicts --policy "
        "best-fit,tlsf,buddy,cuda-2.13,banked,banks:16",
        """Twice the banks halve the value of chance. Sixteen do not help sizes that are multiples
of 8 KiB. The recorded models, with sizes of all kinds, improve by a sixth to a third.""",
    ),
    (
        "Expandable segments, stitching, planning",
        "npusim-lab compare *.npt --metric over_max_live --policy "
        "cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """`planned` knows all lifetimes before the run, as STAlloc does from a profile. Policies
that map pages can be below it where it exceeds 1, because no fixed placement binds
them.""",
    ),
    (
        "What does stitching cost?",
        "npusim-lab compare *.npt --metric device_ms --policy "
        "best-fit,cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """Numbers are milliseconds in device calls, at assumed costs
(`npusim_lab.study.DEVICE_COSTS`): 200 microseconds per malloc or free, 20 per 2 MiB
mapped or unmapped. Stitching saves memory by remapping pages again and again.
Expandable segments map each page once, with most of the gain. They gain more on the
recorded models, whose blocks are mostly smaller than the pages that stitching needs.""",
    ),
]


def tidy(text: str) -> str:
    """Table rows without the ending of file names."""
    return text.replace(".npt |", " |").strip()


def run(command: str, folder: str) -> str:
    """Run a command of the page; what it prints."""
    words = command.split()
    shown = [
        str(path.name)
        for word in words
        for path in (sorted(Path(folder).glob(word)) if "*" in word else [Path(word)])
    ]
    done = subprocess.run(
        [sys.executable, "-m", "npusim_lab", *shown[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return tidy("\n".join(line for line in lines if line.startswith("|")))


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        from npusim_lab.corpus import GENERATORS

        for name in GENERATORS:
            run(f"npusim-lab generate {name}", folder)
        for path in sorted(RECORDED.glob("*.npt")):
            shutil.copy(path, folder)
        parts = [HEAD]
        for title, command, why in EXPERIMENTS:
            table = run(command, folder)
            parts.append(f"## {title}\n\n```console\n$ {command}\n```\n\n{table}\n\n{why}\n")
        PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
