# SPDX-License-Identifier: BSD-3-Clause
"""Asks the kit which of its cases notice each planted defect: `python mutations.py [NAME...]`.

    --show     only whether the line of plain PyTorch beside each defect shows it
    --page     writes the tables of docs/reference/conformance_mutations.md; rows of defects
               that were not asked for stay as they are there, and so do TorchCTS's answers
    --out DIR  where the runs are kept; those that are there are not repeated
    --group    linked, own or blind

One process has torch and the kit's databases loaded, and forks what loads the device.
"""

import argparse
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests" / "conformance"  # where `defects` is
SHOW_SECONDS = 10
COMPILE_SECONDS = 120  # to show a defect of compiled code
CASE_SECONDS = 20
SLOW_CASE_SECONDS = 120  # with the whole device, and where interpreters are started
SLOW = frozenset(f"contract:{group}" for group in ("compile", "exit", "fork", "inductor"))
CAUGHT = frozenset({"fail", "crash", "timeout", "oom", "unimplemented", "flake", "memory"})


def described() -> dict[str, dict[str, Any]]:
    """{name: what the table says}; asked in another process, since this one loads no device."""
    script = (
        "import json, defects; print(json.dumps({name: {'group': one.group, 'says': one.says, "
        "'link': one.link, 'touches': one.touches} for name, one in defects.DEFECTS.items()}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        env=environment(),
    )
    found: dict[str, dict[str, Any]] = json.loads(told.stdout.splitlines()[-1])
    return found


def device() -> str:
    """The device that has the defects; DEFECTS_IN and DEFECTS_PATH say where its backend is."""
    return os.environ.get("DEFECTS_DEVICE", "npusim")


def environment() -> dict[str, str]:
    """Variables for processes that import the defects."""
    kept = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    path = f"{PLANTED}:{ROOT}:{ROOT / 'conformance'}:{os.environ.get('DEFECTS_PATH', '')}"
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


# --- what the lines beside the defects show


def shown(names: list[str]) -> dict[str, bool]:
    """Whether the outcome of each defect's line is another than on the whole device."""
    import torch  # noqa: F401  (so that children need not; they load the device)

    whole, again = (_outcomes(names, "") for _ in range(2))
    assert whole, "the device without a defect ended the process"
    found = {}
    for name in names:
        assert whole.get(name) == again.get(name), f"{name}: {whole.get(name)}, {again.get(name)}"
        found[name] = _outcomes([name], name) != {name: whole.get(name)}
        if not found[name]:
            print(f"{name}: {whole[name]}", flush=True)
    return found


def _outcomes(names: list[str], planted: str) -> dict[str, str]:
    """Results of lines in one child, as text; of a child that dies or hangs, nothing."""
    with tempfile.TemporaryFile("w+") as answer:
        child = os.fork()
        if child == 0:
            os.environ["DEFECT"] = planted  # before the defects are imported
            signal.alarm(_seconds(planted) if planted else sum(map(_seconds, names)))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                json.dump({name: _digest(name) for name in names}, answer)
                answer.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        answer.seek(0)
        told = answer.read()
    found: dict[str, str] = json.loads(told) if told else {}
    return found


def _seconds(name: str) -> int:
    import defects

    compiles = SLOW.intersection(defects.DEFECTS[name].touches)
    return COMPILE_SECONDS if compiles else SHOW_SECONDS


def _digest(name: str) -> str:
    import defects
    import torch
    from torch.utils import _pytree as pytree

    def text(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor):
            here = leaf.detach().cpu().resolve_conj().contiguous()
            return leaf.dtype, tuple(leaf.shape), str(leaf.device), here.view(-1).tolist()
        return leaf if isinstance(leaf, int | float | str | bool | torch.device) else type(leaf)

    try:
        result = defects.DEFECTS[name].shows(device())
        return str(pytree.tree_map(text, result))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- what the kit finds


def judged(out: Path, name: str, touches: list[str], run: Callable[[list[str]], int]) -> None:
    """Runs the kit on the device with one defect, or with none for the name "whole"."""
    if (out / name / "report.json").exists():
        return
    os.environ["DEFECT"] = "" if name == "whole" else name
    # With the variants that torch's database has of an operator, as scatter_reduce.amax.
    chosen = [glob if ":" in glob else f"op:{glob},op:{glob}.*" for glob in touches]
    command = ["run", "--device", device(), "--import", "defects", "--quiet", "--jobs", "1"]
    if device() == "npusim":
        command += ["--expect", str(PLANTED / "defects" / "expectations.toml")]
    is_slow = name == "whole" or SLOW.intersection(touches)
    seconds = SLOW_CASE_SECONDS if is_slow else CASE_SECONDS
    command += ["--timeout", str(seconds), "--ops", ",".join(chosen)]
    if run([*command, "--out", str(out / name)]) not in (0, 1):
        raise SystemExit(f"{name}: no run of {chosen}")


def statuses(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """{case: record} of a run."""
    lines = (out / name / "run.jsonl").read_text().splitlines()[1:]
    return {record["case"]: record for record in map(json.loads, lines) if "case" in record}


def caught(out: Path, name: str) -> dict[str, str]:
    """{case: message} of the cases that fail on the broken device and not on the whole one."""
    whole = statuses(out, "whole")
    found = {}
    for case, record in statuses(out, name).items():
        before = whole.get(case, {}).get("status", "")
        if record["status"] != before and record["status"] in CAUGHT | {"fallback-pass"}:
            found[case] = record.get("message", "")
    return found


def row(name: str, told: dict[str, Any], found: dict[str, str]) -> str:
    """A defect's line in its table."""
    says = f"{told['says']} ([report]({told['link']}))" if told["link"] else told["says"]
    first = f"`{next(iter(found))}`" if found else "**nothing**"
    return f"| {name.replace('_', ' ')} | {says} | {first} | {len(found)} |"


def page(out: Path, table: dict[str, dict[str, Any]], asked: set[str], before: str) -> str:
    """The page, in Markdown; of defects that were not asked for, the rows that it had before."""
    kept = {line.split(" | ")[0][2:]: line for line in before.splitlines() if line[:2] == "| "}
    rows = {}
    for name, told in table.items():
        line = kept.get(name.replace("_", " "), "not asked |")
        if name in asked:
            line = f"{row(name, told, caught(out, name))} {line.rpartition(' | ')[2]}"
        rows[name] = line
    found = {name for name, line in rows.items() if "**nothing**" not in line}
    lines = []
    for group, title in (
        ("linked", "Bugs of real backends"),
        ("own", "Made for this kit"),
        ("blind", "Made by somebody who has not seen the kit's cases"),
    ):
        names = [name for name, told in table.items() if told["group"] == group]
        lines += ["", f"## {title}: {len(found.intersection(names))} of {len(names)}", ""]
        lines += ["| defect | what is wrong | found by | cases | TorchCTS |", "|---" * 5 + "|"]
        lines += [rows[name] for name in names]
    whole = statuses(out, "whole")
    false = sorted(case for case, record in whole.items() if record["status"] in CAUGHT)
    head = re.sub(
        r"\*\*\d+ of \d+\*\*\. Of the \d+ cases of all these selections, \d+ fail",
        f"**{len(found)} of {len(rows)}**. Of the {len(whole)} cases of all these selections, "
        f"{len(false)} fail",
        before.partition("\n## ")[0].rstrip(),
    )
    return "\n".join([head, *lines]) + "\n"


def main() -> int:
    """Prints what was found; status 1 where something was not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="globs; default: all")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--group")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutations")
    options = parser.parse_args()
    os.environ.update(environment())
    sys.path[:0] = os.environ["PYTHONPATH"].split(":")
    every = described()
    table = {
        name: told
        for name, told in every.items()
        if (not options.group or told["group"] == options.group)
        and (not options.names or any(fnmatch.fnmatch(name, glob) for glob in options.names))
    }
    if options.show:
        unseen = [name for name, seen in shown(list(table)).items() if not seen]
        print(
            f"{len(table) - len(unseen)} of {len(table)} are shown; not: {', '.join(unseen) or '-'}"
        )
        return bool(unseen)
    from npusim_conformance.cli import main as kit
    from npusim_conformance.run import runner

    runner.RETRIES_MAX = 0  # what fails once has found the defect
    whole = every if options.page else table  # the page counts the cases of all selections
    everything = sorted({glob for told in whole.values() for glob in told["touches"]})
    judged(options.out, "whole", everything, kit)
    for name, told in table.items():
        judged(options.out, name, told["touches"], kit)
        seen = caught(options.out, name)
        first = next((f"{case}: {text}" for case, text in seen.items()), "NOTHING")
        print(f"{name}: {len(seen)} cases, {first[:150]}", flush=True)
    if options.page:
        file = ROOT / "docs" / "reference" / "conformance_mutations.md"
        file.write_text(page(options.out, every, set(table), file.read_text()))
    return not all(caught(options.out, name) for name in table)


if __name__ == "__main__":
    sys.exit(main())
