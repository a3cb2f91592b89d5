# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/experiments.md: questions, the command that answers each, what it said, and why.

    python tests/bench/lab_experiments.py

The commands run in a folder with the traces of `npusim-lab generate`, which are made up, and the
recorded ones. What they print depends on no clock, so the page is the same everywhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "experiments.md"
RECORDED = ROOT / "lab" / "npusim_lab" / "recorded"

HEAD = """# Experiments

Questions about allocators, each answered by one command. The page is written by

```console
$ python tests/bench/lab_experiments.py
```

in a folder with the traces of `npusim-lab generate`, which are made up (the sizes of models by
arithmetic), and those recorded from real models on npusim. Numbers are `over_max_live`, peak
reserved memory over the most that is live, unless said otherwise: no policy is below 1. The device
has no limit. Metrics and settings are in [lab.md](lab.md).
"""

FITS = "best-fit,first-fit,next-fit,tlsf,bins,buddy"
# Title, command, what the table says and why.
EXPERIMENTS = [
    (
        "Which fit is best, with the caching allocator's segments?",
        f"npusim-lab compare *.npt --metric over_max_live --policy {FITS},cuda-2.13",
        """All but the last get their segments by the rule of the CUDA caching allocator
(`--arena cuda`, the default). Then best fit, first fit and tlsf differ little, and `cuda-2.13`
is a best fit. Next fit spreads short-lived blocks over all segments. Bins keep what was carved
for a class, and pay where the sizes vary.

**Why does buddy win where sizes vary?** Not by its fit: it rounds all sizes to powers of two,
so a segment of 10 MiB and more, which is bought in the size of one request, fits the next
request too. The others buy segments that only fit a request of that size or less. The recorded
models have smaller tensors, and there it loses. The next table takes the effect away.""",
    ),
    (
        "And in one arena that grows at its end?",
        f"npusim-lab compare *.npt --metric over_max_live --arena one --policy {FITS}",
        """With one range, a fit is compared with a fit: best and first fit are within a few
percent of the bound nearly everywhere, and buddy pays for its rounding. Most of what is called
fragmentation of a fit is the rule for segments. tlsf is best fit with sizes in classes: it may
leave a range of the request's own class alone, which costs a whole block where there are few,
large ones (`pytorch-193400`).""",
    ),
    (
        "What do quanta of 32, 256 and 512 bytes cost?",
        "npusim-lab compare *.npt --metric internal --policy "
        + ",".join(f"cuda-2.13,quantum_bytes:{n}" for n in (32, 256, 512)),
        """The metric is the share of active memory that was not asked for, at the peak. Tensors
of models are large: a quantum of 512 instead of 32 costs less than a ten-thousandth here, and
what the caching allocator loses otherwise are the remainders of segments that it does not
split.""",
    ),
    (
        "What does a device without realloc cost?",
        "npusim-lab compare kv-cache.npt kv-realloc.npt --metric peak_reserved --policy "
        "best-fit,cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """`kv-cache` copies each cache to a larger one; in `kv-realloc` the old one is gone
when the larger is placed. Where memory is mapped or planned, that second copy costs its size,
some 80 MiB or 7 %. With segments of the caching allocator it costs nothing, because segments
bought for caches of other sizes stand idle anyway, and these are the larger loss by far.""",
    ),
    (
        "Bank conflicts with 8 banks",
        "npusim-lab compare *.npt --banks 8 --metric bank_conflicts --policy "
        "best-fit,tlsf,buddy,cuda-2.13,banked,banks:8",
        """The share of pairs, of an allocation and one of the three before it, that begin in
the same of 8 banks of 512 bytes. By luck it would be 0.125. Sizes that are multiples of banks
times 512 bytes, as those of large models are, put everything in one bank, under every policy;
buddy rounds all to such sizes. `banked` moves blocks by up to a few banks.""",
    ),
    (
        "Bank conflicts with 16 banks",
        "npusim-lab compare *.npt --banks 16 --metric bank_conflicts --policy "
        "best-fit,tlsf,buddy,cuda-2.13,banked,banks:16",
        """Twice the banks halve what luck would give. Where sizes are multiples of 8 KiB it
helps nothing, and on the recorded models, whose sizes are of all kinds, by a sixth to a third.""",
    ),
    (
        "Expandable segments, stitching, planning",
        "npusim-lab compare *.npt --metric over_max_live --policy "
        "cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """`planned` knows all lifetimes before the run, as STAlloc does from a profile, and is
a placement: where it is above 1, policies that map pages can be below it, because they are
bound by no placement.""",
    ),
    (
        "What does stitching cost?",
        "npusim-lab compare *.npt --metric device_ms --policy "
        "best-fit,cuda-2.13,cuda-2.13,expandable_segments:True,stitching,planned",
        """Milliseconds in calls to the device, at assumed costs
(`npusim_lab.study.DEVICE_COSTS`): 200 microseconds for a malloc or a free, 20 for each 2 MiB
that are mapped or unmapped. Stitching saves memory by mapping pages again and again. Expandable
segments map each page once, and have most of the gain; on the recorded models, whose blocks are
mostly smaller than the pages that stitching needs, they have more.""",
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
