# SPDX-License-Identifier: BSD-3-Clause
"""The name that was meant by one that names nothing, read from sources: torch's database is slow.

torch is not imported. Names that only the database can tell are catalog.py's.
"""

import difflib
import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from npusim_conformance.case import KINDS

# As the database names an operator: OpInfo("add", ...), or name= of a function that makes one; and
# as the kit's own table of distributions does.
_NAMED = re.compile(
    r"Info\(\s*[\"']([\w.]+)[\"']|\b(?:op_)?name=[\"']([\w.]+)[\"']|\"([\w.]+)\": Distribution\("
)
_GLOB = re.compile(r"[*?[]")


def near(name: str, names: Iterable[str]) -> str:
    """The name that was meant: one that ends so, or one that is written alike; or nothing."""
    known = list(names)
    ends = [one for one in known if one.endswith(f".{name}")]
    return next(iter(ends or difflib.get_close_matches(name, known, 1)), "")


def is_literal(word: str) -> bool:
    """Whether a word of a choice names one subject."""
    return not (_GLOB.search(word) or word.startswith("~"))


def meant(word: str) -> str:
    """The word of --ops that was meant, or nothing where this one may name something."""
    kind, colon, name = word.partition(":")
    if not is_literal(word):
        return ""
    if kind == "aten" and name.startswith(":"):  # as reports name an overload
        base = name[1:].partition(".")[0].rstrip("_")
        return base if base in _operators() else near(base, _operators()) or "*"
    if colon and kind not in KINDS:
        return f"{near(kind, KINDS) or 'op'}:{name}"
    if kind == "contract":
        return "" if name in _groups() else f"contract:{near(name, _groups()) or '*'}"
    if colon and kind != "op":
        return ""
    own = name if colon else word
    if any(own == one or own.startswith(f"{one}.") for one in _operators()):
        return ""
    found = near(own, _operators())  # without a kind it may be an optimizer, a group of contracts
    is_meant = colon or found.endswith(f".{own}")
    return f"{kind}:{found}" if colon and found else found if is_meant else ""


@cache
def _operators() -> tuple[str, ...]:
    """Names of the operators of torch's database, some without their variant, and of the kit's."""
    torch = find_spec("torch")
    places = (torch and torch.submodule_search_locations) or ["torch"]
    root = Path(places[0]) / "testing" / "_internal"
    own = Path(__file__).parents[1] / "properties" / "distributions.py"
    database = root / "common_methods_invocations.py"
    files = (own, database, *(root / "opinfo/definitions").glob("*.py"))
    found = [_NAMED.findall(file.read_text()) for file in files if file.exists()]
    names = {"".join(name) for names in found for name in names}
    return tuple(sorted(name for name in names if not name.startswith("_refs.")))


@cache
def _groups() -> tuple[str, ...]:
    """Groups of contracts."""
    files = (Path(__file__).parents[1] / "contracts").glob("[a-z]*.py")
    return tuple(sorted(file.stem for file in files))
