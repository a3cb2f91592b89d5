# SPDX-License-Identifier: BSD-3-Clause
"""Runs wrong programs and their twins; the status is 1 if one ends unexpectedly.

python -m claims                        every claim, a line for each
python -m claims uninitialised          claims whose SUBJECT/NAME has the word, with messages
python -m claims --changed              claims that differ from HEAD
python -m claims --shard 1/4            the first of four parts
python -m claims --subject npusim       on npusim alone
python -m claims --write                keeps the outcomes, and fills the tables of the pages
python -m claims --pages                fills them from the outcomes that are kept
"""

import argparse
import json
import os
import sys

os.environ.setdefault("NPUSIM_DEVICE_COUNT", "2")

from claims import pages, runner
from claims.claim import ids, load


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m claims", description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts of SUBJECT/NAME; default: all claims")
    parser.add_argument("--changed", nargs="?", const="HEAD", metavar="COMMIT")
    parser.add_argument("--shard", metavar="I/N")
    parser.add_argument("--subject", action="append", help="cpu, meta, fake, gloo, npusim")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pages", action="store_true")
    asked = parser.parse_args()
    chosen = ids(*asked.words)
    if asked.changed:
        chosen = runner.changed(chosen, asked.changed)
    if asked.shard:
        part, parts = map(int, asked.shard.split("/"))
        chosen = chosen[part - 1 :: parts]
    status = 0
    if not asked.pages:
        runner.prepare()
        found = {}
        for name, of in runner.outcomes(chosen, asked.subject or ()):
            found[name] = of
            good = runner.as_expected(load(name), found[name])
            status |= not good
            if not asked.json:
                show(name, found[name], good, bool(asked.words) or not good)
        if asked.json:
            print(json.dumps(found))
        if asked.write:
            pages.keep(runner.stamp(), found, anew=not asked.words)
    if asked.write or asked.pages:
        for page in pages.PAGES:
            page.write_text(pages.filled(page.read_text(), pages.read()))
    return status


def show(name: str, of: runner.Stopped, good: bool, whole: bool) -> None:
    """Prints the line of a claim, and with `whole` what stopped its variants."""
    said = of["wrong"].get("npusim", "") or "nothing"
    print(f"{'ok ' if good else 'BAD'} {name}: {said.splitlines()[-1][:120]}", flush=True)
    for variant, by_subject in of.items() if whole else ():
        for subject, words in by_subject.items():
            print(f"    {variant:5} on {subject:6}  {words or 'passes'}")


if __name__ == "__main__":
    sys.exit(main())
