# SPDX-License-Identifier: BSD-3-Clause
"""Asks the kit about backends of others: `python foreign.py SOURCES [--page]`, or `make foreign`.

SOURCES holds a folder for each backend, with its package inside, built for the installed torch. A
folder that is missing is cloned and built where there is a network (foreign_sources.py). Nothing of
theirs is stored here. A file COMMIT in the folder names the version, and what it was built with.

    --offline  clones nothing
    --backend FOLDER:MODULE:DEVICE   another backend than those in the table below
    --log NAME=DIR                   a row of a vendor's own run, which may have been a remote one
    --core     asks for the forward cases of operators only, where a whole profile takes too long
    --page     writes docs/reference/conformance_foreign.md
    --defects  plants the defects of tests/conformance/defects/foreign_*.py in each backend, too
    --out DIR  where the runs are kept; those that are there are not repeated
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pages import foreign_sources  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "conformance_foreign.md"
SMOKE_SECONDS = 3600
CORE = ("--props", "forward", "--ops", "op:*")  # of the smoke profile
KINDS = ("pass", "fallback-pass", "fail", "crash", "timeout", "unimplemented", "upstream")
SCRIPT_MAX = 2500  # a longer one is not shown


@dataclass(frozen=True)
class Backend:
    """A backend: the folder in SOURCES that it is looked for in, its package and its device."""

    folder: str
    module: str
    device: str
    compiles: bool = False  # each kernel when it is first called, so that only the core is asked


BACKENDS = (
    Backend("torch_openreg", "torch_openreg", "openreg"),
    Backend("torch_mcpu", "torch_mcpu", "mcpu"),
    Backend("tinygrad", "extra.torch_backend.backend", "tiny", compiles=True),
    Backend("pytorch_dlprim", "pytorch_ocl", "ocl"),
)


def environment(sources: Path, backend: Backend) -> dict[str, str]:
    """Variables of a process that loads the backend."""
    kept = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    path = f"{sources / backend.folder}:{ROOT / 'conformance'}"
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def why_not(sources: Path, backend: Backend, is_offline: bool) -> str:
    """Why a backend cannot be asked, or nothing."""
    if not (sources / backend.folder).is_dir():
        source = None if is_offline else foreign_sources.SOURCES.get(backend.folder)
        if source is None:
            return f"no folder {backend.folder}"
        try:
            foreign_sources.fetch(backend.folder, source, sources)
        except foreign_sources.NotToBeHad as reason:
            return str(reason)
    script = f"import torch, {backend.module}; torch.ones(2).to({backend.device!r}).cpu()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(sources, backend),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return "" if done.returncode == 0 else last[0][:150]


def outcomes(sources: Path, backend: Backend, out: Path, core: bool) -> list[dict[str, Any]]:
    """The outcomes of the kit's smoke profile, or of its core; the last of each case."""
    directory = out / backend.folder
    if not (directory / "report.json").exists():
        command = [sys.executable, "-m", "npusim_conformance", "run", "--device", backend.device]
        command += ["--import", backend.module, "--profile", "smoke", "--jobs", "1", "--quiet"]
        command += [*(CORE if core or backend.compiles else ()), "--load-timeout", "300"]
        command += ["--warm-up", "600"] if backend.compiles else []
        subprocess.run(
            [*command, "--out", str(directory)],
            env=environment(sources, backend),
            timeout=SMOKE_SECONDS,
            check=False,
        )
    return records_of(directory)


def records_of(directory: Path) -> list[dict[str, Any]]:
    """The outcomes of a run; the last of each case."""
    lines = (directory / "run.jsonl").read_text().splitlines()[1:]
    records = [record for record in map(json.loads, lines) if "case" in record]
    return list({record["case"]: record for record in records}.values())


def is_silent(record: dict[str, Any]) -> bool:
    """Whether the device gave a wrong value and said nothing."""
    text = record.get("message", "")
    return record["status"] == "fail" and bool(re.search("largest error|elements differ", text))


def gravest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Three findings of three causes: wrong in silence first, then crashes."""
    order = {"fail": 1, "crash": 2}
    able = [
        record
        for record in records
        if record["status"] in order
        and record.get("culprit")
        and "import torch" in record.get("repro", "")
        and len(record["repro"]) < SCRIPT_MAX
    ]
    able.sort(
        key=lambda record: (not is_silent(record), order[record["status"]], len(record["repro"]))
    )
    found: dict[str, dict[str, Any]] = {}
    for record in able:
        found.setdefault(record["culprit"], record)
    return list(found.values())[:3]


def commit(sources: Path, backend: Backend) -> str:
    """The version of a backend, as its folder tells."""
    file = sources / backend.folder / "COMMIT"
    return file.read_text().strip() if file.exists() else "unknown"


def in_core(record: dict[str, Any]) -> bool:
    """Whether a case is one of those that all backends are asked."""
    return record["case"].startswith("op:") and "/forward/" in record["case"]


def counted(records: list[dict[str, Any]]) -> tuple[int, ...]:
    """Cases executed, passed, failed, wrong in silence, that ended the process, without kernel."""
    counts = Counter(record["status"] for record in records)
    passed = counts["pass"] + counts["fallback-pass"]
    silent = sum(map(is_silent, records))
    executed = sum(counts[kind] for kind in KINDS)
    died = counts["crash"] + counts["timeout"]
    return executed, passed, counts["fail"], silent, died, counts["unimplemented"]


def row(folder: str, of: str, torch: str, records: list[dict[str, Any]]) -> str:
    """A backend's line of a scoreboard."""
    return f"| {' | '.join(map(str, (folder, of, torch, *counted(records))))} |"


def written(table: str, backend: Backend) -> list[str]:
    """The backend's line, if a part of the page has one, of an earlier run."""
    start, cells = f"| {backend.folder} |", len(TITLES) + 1
    return [
        line for line in table.splitlines() if line.startswith(start) and line.count("|") == cells
    ]


def findings(records: list[dict[str, Any]]) -> list[str]:
    """The gravest findings, in Markdown, the first with its script."""
    lines = []
    for number, record in enumerate(gravest(records)):
        message = re.sub(r"\s+", " ", record["message"])[:200]
        lines += ["", f"`{record['case']}`, at fault `{record['culprit']}`: {message}"]
        if number == 0:
            lines += ["", "```text", record["repro"].rstrip(), "```"]
    return lines


def planted(sources: Path, backend: Backend, out: Path) -> list[str]:
    """Lines of a table: the defects, and the case that finds each."""
    import mutations

    told = {
        "DEFECTS_IN": backend.module,
        "DEFECTS_DEVICE": backend.device,
        "DEFECTS_PATH": str(sources / backend.folder),
    }
    command = [sys.executable, mutations.__file__, "--out", str(out / f"{backend.folder}-defects")]
    subprocess.run(command, env={**os.environ, **told}, check=False)
    os.environ.update(told)
    table = mutations.described()
    where = out / f"{backend.folder}-defects"
    rows = [mutations.row(name, one, mutations.caught(where, name)) for name, one in table.items()]
    found = sum("**nothing**" not in line for line in rows)
    head = f"## Defects planted in {backend.folder}: {found} of {len(rows)}"
    return [
        "",
        head,
        "",
        "| defect | what is wrong | found by | cases |",
        "|---|---|---|---|",
        *rows,
    ]


TITLES = ("backend", "commit, built with", "torch", "executed", "passed", "fail", "in silence",
          "died", "no kernel")  # fmt: skip
RULER = "|---" * len(TITLES) + "|"

WHOLE_TITLE = "## The whole smoke profile"


def above(part: str) -> str:
    """Returns what a part of the page has before its rows: prose by hand, and the table's head."""
    head, ruler, _ = part.partition(RULER)
    return head + ruler


def kept(page: str, written: str) -> str:
    """Returns the sections of a page that the new text does not have, whatever their numbers."""

    def title(section: str) -> str:
        return section.partition("\n")[0].partition(":")[0]

    made = {title(section) for section in written.split("\n## ")[1:]}
    return "".join(
        f"\n## {section.rstrip()}\n"
        for section in page.split("\n## ")[1:]
        if title(section) not in {*made, "Not to be had"}
    )


def main() -> int:
    """Prints the scoreboard; status 1 if no backend was to be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--defects", action="store_true")
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--log", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "foreign")
    options = parser.parse_args()
    import torch

    sources = options.sources.resolve()
    rows, whole, sections, absent, asked = [], [], [], [], False
    others = [Backend(*told.split(":")) for told in options.backend]
    page = PAGE.read_text()
    old_core, _, old_whole = page.partition(WHOLE_TITLE)
    for backend in (*BACKENDS, *others):
        reason = why_not(sources, backend, options.offline)
        if reason:
            rows += (earlier := written(old_core, backend))
            whole += written(old_whole, backend)
            absent += [] if earlier else [f"| {backend.folder} | {reason} |"]
            continue
        asked = True
        records = outcomes(sources, backend, options.out, options.core)
        said = backend.folder, commit(sources, backend), torch.__version__
        core = [record for record in records if in_core(record)]
        rows.append(row(*said, core))
        if len(core) < len(records):
            whole.append(row(*said, records))
        sections += ["", f"## {backend.folder}: the gravest findings", *findings(records)]
        if options.defects:
            sections += planted(sources, backend, options.out)
    for name, _, directory in (told.partition("=") for told in options.log):
        head = json.loads((Path(directory) / "run.jsonl").read_text().partition("\n")[0])
        said = name, "a vendor's run", head["torch"]
        records, asked = records_of(Path(directory)), True
        rows.append(row(*said, [record for record in records if in_core(record)]))
        whole.append(row(*said, records))
    missing = ["", "## Not to be had", "", "| backend | reason |", "|---|---|", *absent]
    core = [above(old_core), *rows]
    tables = [*core, *(["", WHOLE_TITLE + above(old_whole), *whole] if whole else [])]
    text = "\n".join([*tables, *(missing if absent else []), *sections]) + "\n"
    print("\n".join([*tables, *absent]))
    if options.page and asked:
        PAGE.write_text(text + kept(page, text))
    return not asked


if __name__ == "__main__":
    sys.exit(main())
