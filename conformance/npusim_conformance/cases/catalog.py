# SPDX-License-Identifier: BSD-3-Clause
"""Which cases there are, and which of them a selection asks for."""

from collections.abc import Iterator
from functools import cache

import torch

from npusim_conformance.case import KINDS, Case, matches
from npusim_conformance.cases.known import properties
from npusim_conformance.cases.near import is_literal, near
from npusim_conformance.cases.selection import PROFILES, Selection
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.subjects import Subject, subjects
from npusim_conformance.properties.base import Dtypes, Property


class UnknownCase(ValueError):
    """No such case, subject or property; the message says what there is."""


def cases(selection: Selection) -> list[Case]:
    """The cases of a selection in the order of execution: subject by subject, slow ones first.

    Raises UnknownCase where a word that is no glob names no subject, property or dtype.
    """
    _check(selection)
    chosen = [case for case in _all_cases(selection.profile) if _is_chosen(case, selection)]
    number, count = selection.shard
    if count == 1:
        return chosen
    groups = sorted({(case.kind, case.subject) for case in chosen})
    mine = {group for index, group in enumerate(groups) if index % count == number - 1}
    return [case for case in chosen if (case.kind, case.subject) in mine]


def all_names() -> list[str]:
    """The names of all cases of all profiles."""
    return sorted({str(case) for profile in PROFILES for case in _all_cases(profile)})


def resolve(case: Case) -> tuple[Property, Subject, torch.dtype | None]:
    """The objects that a name stands for. Raises UnknownCase."""
    prop = properties().get((case.kind, case.property))
    if prop is None:
        known = sorted(name for kind, name in properties() if kind == case.kind)
        raise UnknownCase(f"{case}: no property {case.property!r}; there are {', '.join(known)}")
    subject = _subjects_of(prop).get(case.subject)
    if subject is None:
        found = near(case.subject, _subjects_of(prop))
        meant = f"did you mean {found!r}? " if found else ""
        raise UnknownCase(
            f"{case}: no {case.kind} {case.subject!r}; {meant}`list` prints all names"
        )
    dtype = getattr(torch, case.dtype, None) if case.dtype else None
    if case.dtype and not isinstance(dtype, torch.dtype):
        raise UnknownCase(f"{case}: torch has no dtype {case.dtype!r}")
    return prop, subject, dtype


def _check(selection: Selection) -> None:
    known = properties()
    if any(map(is_literal, selection.subjects.split(","))):
        of_kinds = [(kind, _subjects_of(prop)) for (kind, _), prop in known.items()]
        names = {name for _, found in of_kinds for name in found}
        full = {f"{kind}:{name}" for kind, found in of_kinds for name in found}
        _named("operator, module or contract", selection.subjects, names | full)
    _named("property", selection.properties, {name for _, name in known})
    _named("dtype", selection.dtypes, set(map(torch_testing.dtype_name, torch_testing.DTYPE_ORDER)))


def _named(what: str, words: str, known: set[str]) -> None:
    """Raises UnknownCase for the first of the words that is no glob and not known.

    The name before the variants ("div" of "div.floor_rounding") is known too.
    """
    families = {name.rpartition(".")[0] for name in known}
    for word in filter(None, map(str.strip, words.split(","))):
        if is_literal(word) and word not in known | families:
            meant = near(word, sorted(known))
            hint = f"did you mean {meant!r}? " if meant else ""
            raise UnknownCase(f"no {what} {word!r}; {hint}`list` prints all names")


@cache
def _subjects_of(prop: Property) -> dict[str, Subject]:
    return prop.subjects()


def _all_cases(profile: str) -> Iterator[Case]:
    for kind in KINDS:
        of_kind = [prop for (owner, _), prop in properties().items() if owner == kind]
        asked = [(prop, _subjects_of(prop)) for prop in of_kind if profile in prop.profiles]
        names: dict[str, Subject] = {}
        for _, of_property in asked:
            names.update(of_property)
        for subject in names.values():
            for prop, of_property in asked:
                if subject.name in of_property:
                    yield from _cases_of(prop, subject, prop.profiles[profile])


def _cases_of(prop: Property, subject: Subject, policy: Dtypes) -> Iterator[Case]:
    for dtype in prop.dtypes(subject, policy):
        name = torch_testing.dtype_name(dtype) if dtype else None
        yield Case(prop.kind, subject.name, prop.name, name)


def _is_chosen(case: Case, selection: Selection) -> bool:
    if not matches((case.subject, f"{case.kind}:{case.subject}"), selection.subjects):
        return False
    if not matches(case.property, selection.properties):
        return False
    # A case without a dtype, a contract as a rule, is neither chosen nor left out by one.
    if case.dtype and not matches(case.dtype, selection.dtypes):
        return False
    if selection.families:
        found = subjects(case.kind).get(case.subject)
        family = found.family if found else case.kind
        return matches((family, case.kind), selection.families)
    return True
