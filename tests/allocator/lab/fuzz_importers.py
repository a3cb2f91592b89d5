# SPDX-License-Identifier: BSD-3-Clause
"""A target of atheris: whatever a file holds, load() returns a valid trace or raises TraceError.

    pip install atheris
    python tests/allocator/lab/fuzz_importers.py -max_total_time=600 CORPUS_FOLDER

The first byte of an input chooses the format. Without a corpus it starts from files made here.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["npusim_lab"]):
    import npusim_lab
    import npusim_lab.snapshot_import
    import npusim_lab.text_formats
    import npusim_lab.trace_file
    from npusim_lab.files import READS, load, save
    from npusim_lab.snapshot_export import to_snapshot

FOLDER = Path(tempfile.mkdtemp())


def one_input(data: bytes) -> None:
    """Read one input in the format that its first byte chooses."""
    if not data:
        return
    path = FOLDER / "input"
    path.write_bytes(data[1:])
    with contextlib.suppress(npusim_lab.TraceError):
        trace = load(path, READS[data[0] % len(READS)])
        assert trace.compiled.max_live_bytes >= 0
        npusim_lab.replay(trace, "npusim", validate=True)


def seed_corpus(folder: Path) -> None:
    """Write one good file of each format."""
    trace = npusim_lab.generate("zero3", steps=1)
    files: dict[str, bytes] = {}
    for name in ("npt", "rmm", "buffers"):
        save(trace, FOLDER / "seed", name)
        files[name] = (FOLDER / "seed").read_bytes()
    text = io.StringIO()
    for size in range(1, 9):
        text.write(f"1 {size * 4096} {size * 512} 0\n0 {size * 4096} 0 0\n")
    files["stalloc"] = text.getvalue().encode()
    files["snapshot"] = pickle.dumps(to_snapshot(trace), protocol=4)
    for name, data in files.items():
        (folder / name).write_bytes(bytes([READS.index(name)]) + data[:20000])


def main() -> None:
    """Run atheris; its options are those of libFuzzer."""
    if not any(Path(word).is_dir() for word in sys.argv[1:]):
        corpus = Path(tempfile.mkdtemp())
        seed_corpus(corpus)
        sys.argv.append(str(corpus))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
