# SPDX-License-Identifier: BSD-3-Clause
"""`npusim truth`: recordings of real GPUs, and what they say of npusim's claims."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

#: Options of the recorder.
_RECORDED = ("minutes", "memory", "sections", "sample", "jobs", "work", "out")


def parser(program: str) -> argparse.ArgumentParser:
    """Returns the parser of the words behind `npusim truth`."""
    text = "Compare npusim's claims with a recording of a real GPU, or fit a specification to it."
    parser = argparse.ArgumentParser(prog=program, description=text)
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    script = verbs.add_parser("script", help="pack the recorder into a file that runs alone")
    script.add_argument("file", nargs="?", default="truth_record.pyz", help="(%(default)s)")
    compare = verbs.add_parser("compare", help="list what a recording disproves; status 1 if any")
    compare.add_argument("file", help="an archive of the recorder")
    compare.add_argument("--spec", help="the specification (default: that of the chip)")
    compare.add_argument("--ours", help="an archive of npusim's answers, instead of asking it")
    compare.add_argument("--minutes", type=float, default=30, help="to ask npusim (default 30)")
    compare.add_argument("--html", help="write a page")
    compare.add_argument("--csv", help="write a row per claim")
    compare.add_argument("--list", help="write a line per disagreement")
    fit = verbs.add_parser("fit", help="make a specification out of half of a recording")
    fit.add_argument("file", help="an archive of the recorder")
    fit.add_argument("--spec", required=True, help="the .toml file to write")
    record = verbs.add_parser("record", help="record npusim itself, as the recorder does a GPU")
    record.add_argument("--as", dest="spec", default="h100-sxm", help="the specification")
    for word in _RECORDED:
        record.add_argument(f"--{word}", help="as of the recorder")
    for verb in (compare, fit):
        verb.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def main(words: Sequence[str] | None = None, program: str = "npusim truth") -> int:
    """Runs the verb; 1 where claims are disproved, 2 where a file cannot be used.

    Args:
        words: Behind `npusim truth`; by default those of the command line.
        program: The name that messages have.
    """
    from npusim_truth.recordings import TruthError

    arguments = parser(program).parse_args(words)
    verbs = {"script": _script, "compare": _compare, "fit": _fit, "record": _record}
    try:
        return verbs[arguments.verb](arguments)
    except TruthError as error:
        print(f"npusim truth: {error}", file=sys.stderr)
        return 2


def _script(arguments: argparse.Namespace) -> int:
    import zipapp

    from npusim_truth import recorder

    zipapp.create_archive(
        Path(recorder.__file__).parents[1],
        arguments.file,
        main="recorder.command:run",
        filter=lambda path: path.match("recorder/*.py"),
        compressed=True,
    )
    print(f"on the machine with the GPU: python {Path(arguments.file).name} --minutes 10")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from npusim_truth import claims, comparison, page
    from npusim_truth.recordings import load, spec_of
    from torch_npusim.sim import specs

    theirs = load(arguments.file)
    spec = arguments.spec or spec_of(theirs)
    if arguments.ours is None and spec is None:
        print(
            f"npusim truth: no specification is about {theirs.chip!r}: rates are compared with "
            f"the built-in npusim-one; name one by --spec, or make one by `npusim truth fit`",
            file=sys.stderr,
        )
    elif spec is not None and spec.endswith(".toml"):
        spec = str(Path(spec).resolve())
        specs.load(spec)
    ours = load(arguments.ours) if arguments.ours else claims.ask(theirs, spec, arguments.minutes)
    verdicts = comparison.compare(theirs, ours)
    if arguments.html:
        Path(arguments.html).write_text(page.html(theirs, ours, verdicts))
    if arguments.csv:
        comparison.write_csv(arguments.csv, verdicts)
    if arguments.list:
        lines = comparison.disagreements(verdicts)
        Path(arguments.list).write_text("".join(line + "\n" for line in lines))
    if arguments.json:
        print(json.dumps([asdict(v) for v in verdicts], indent=1))
    else:
        print(page.words(theirs, ours, verdicts))
    return 0 if all(v.agrees for v in verdicts) else 1


def _fit(arguments: argparse.Namespace) -> int:
    from npusim_truth import least_squares
    from npusim_truth.recordings import load

    recording = load(arguments.file)
    made = least_squares.fit(recording)
    Path(arguments.spec).write_text(made.text)
    errors = least_squares.errors(recording, Path(arguments.spec).resolve())
    if arguments.json:
        print(json.dumps({"measured": made.measured, "errors": [asdict(e) for e in errors]}))
        return 0
    print(f"{arguments.spec}: {len(made.measured)} numbers of the recording, the rest of ", end="")
    print(made.base or "a100-80-sxm, as assumed: no specification is about this chip")
    for error in errors:
        print(f"  {error}")
    return 0


def _record(arguments: argparse.Namespace) -> int:
    from npusim_truth import claims

    given = [(word, getattr(arguments, word)) for word in _RECORDED]
    words = [text for word, value in given if value for text in (f"--{word}", value)]
    return claims.run(words, claims.environment(arguments.spec, None, "2.13"))
