# SPDX-License-Identifier: BSD-3-Clause
"""Runs the commands of nightly.toml; build/nightly.json keeps their last results and commits.

nightly.py [WORD]    all commands, or those that contain a word; status 1 if one failed

A command that has passed at this commit is left out: a run that was stopped goes on where it was.
"""

import datetime
import json
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

LIMIT = 3 * 3600  # seconds for one command
ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "nightly.toml"
RESULTS = ROOT / "build" / "nightly.json"


def commit() -> str:
    """Returns the commit that is checked out, with a + if a source file differs from it.

    Pages are no sources: the commands write them.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!docs")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def run(command: str) -> tuple[int, str]:
    """Returns the command's status, 124 if it took longer than LIMIT, and its output."""
    python, *arguments = shlex.split(command)
    words = [sys.executable if python == "python" else python, *arguments]
    done = subprocess.run(
        ["timeout", "--kill-after=60", str(LIMIT), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def main() -> int:
    """Runs and writes; returns the exit status."""
    commands = tomllib.loads(TABLE.read_text())["commands"]
    chosen = [command for command in commands if not sys.argv[1:] or sys.argv[1] in command]
    failed = []
    for command in chosen:
        begin, at = time.monotonic(), commit()
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        last = results.get(command, {})
        if last.get("commit") == at and last["status"] == 0 and not at.endswith("+"):
            print(f"== {command}: passed at {at}", flush=True)
            continue
        print(f"== {command}", flush=True)
        status, output = run(command)
        print(output, flush=True)
        lines = [line for line in output.splitlines() if line.strip()]
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # others write too
        results[command] = {
            "commit": at,
            "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "status": status,
            "seconds": round(time.monotonic() - begin),
            "last_line": lines[-1][:200] if lines else "",
        }
        kept = {name: results[name] for name in commands if name in results}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        if status:
            failed.append(command)
    for command in failed:
        print(f"failed: {command}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
