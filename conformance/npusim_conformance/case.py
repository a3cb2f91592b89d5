# SPDX-License-Identifier: BSD-3-Clause
"""The name of a case: `kind:subject/property[/dtype]`, the same on every device and torch."""

import fnmatch
from dataclasses import dataclass

KINDS = ("op", "module", "optim", "foreach", "custom", "contract", "upstream", "aten")
# Samples per case, of each profile; None is all of them.
SAMPLES_MAX = {"smoke": 4, "standard": 40, "full": None}


@dataclass(frozen=True, order=True)
class Case:
    """One check: a property of a subject, for one dtype where the property depends on it.

    `op:nn.functional.gelu/backward/bfloat16`, `contract:stream/wait_orders_work`.
    """

    kind: str
    subject: str
    property: str
    dtype: str | None = None

    def __str__(self) -> str:
        name = f"{self.kind}:{self.subject}/{self.property}"
        return f"{name}/{self.dtype}" if self.dtype else name

    @staticmethod
    def parse(text: str) -> "Case":
        """The inverse of str(). Raises ValueError for anything else."""
        kind, colon, rest = text.partition(":")
        parts = rest.split("/")
        if kind == "upstream" and len(parts) >= 2:  # a path may hold slashes
            parts = ["/".join(parts[:-1]), parts[-1]]
        if not colon or kind not in KINDS or len(parts) not in (2, 3) or not all(parts):
            raise ValueError(
                f"{text!r} is not the name of a case. Expected kind:subject/property[/dtype], "
                f"as in op:add/forward/float32, with a kind of {', '.join(KINDS)}. "
                "`npusim-conformance list` prints all names."
            )
        return Case(kind, *parts)


def matches(names: str | tuple[str, ...], patterns: str) -> bool:
    """Whether something is chosen by comma-separated globs; those with a leading ~ exclude.

    Of several names that it has, one that fits is enough. Only exclusions: everything else is
    chosen. `matches("linalg.svd", "linalg.*,~*svd")` is False.
    """
    of_it = (names,) if isinstance(names, str) else names
    words = [word.strip() for word in patterns.split(",") if word.strip()]
    includes = [word for word in words if not word.startswith("~")]
    excludes = [word[1:] for word in words if word.startswith("~")]

    def fits(words: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, word) for name in of_it for word in words)

    return not fits(excludes) and (not includes or fits(includes))
