# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/mined_fixes.md from the results."""

from collections import Counter
from typing import Any

HEAD = """# Fixes of public libraries, before and after

Generated from `tools/mined_fixes/fixes/*.toml` and `build/mined_fixes/results.json`, which this
command writes:

```sh
python tools/mined_fixes/run.py
```

The fixes come from the libraries' histories and changelogs. The command fetches the last release
before each fix and one with it, and runs a program of this project with both: on the CPU without
npusim, and under the [CUDA alias](../use/cuda_alias.md) with one device, or as its row says. A
program raises if it meets the defect; programs about waits set
`torch.cuda.set_sync_debug_mode("error")` first. The last two columns are npusim's. Releases that do
not import here were left out.

- Rows with a star were listed before any of them ran, and those that npusim misses stay. Five were
  withdrawn: the release named as the one before lacked the defect (four) or does not import here.
- A program is void if it would say the same on a GPU: its row has the reason. No program was
  changed after its first run but those that say so.
- Of the others, programs that found nothing in the release before were left out, so misses are
  not counted there.

"""
TITLES = (
    *("library", "before", "after", "fix", "about", "defect"),
    *("CPU, before", "before", "after"),
)


def _end(said: str) -> str:
    text = said.replace("|", "/").replace("`", "'")[:90]
    return f"`{text}`" if text else "passes"


def _row(row: dict[str, Any], found: dict[str, str]) -> str:
    reference = row["reference"]
    address = reference.replace("#", "/pull/").replace("@", "/commit/")
    fix = f"[{reference.partition('/')[2]}](https://github.com/{address})"
    what = row["what"] + "".join(f" ({row[key]})" for key in ("reason", "note") if key in row)
    what += "".join(f", `{name}={text}`" for name, text in row.get("settings", {}).items())
    star = " *" if row.get("selected_first") else ""
    cells = [row["library"] + star, row["before"], row["after"], fix, row["about"], what]
    cells += [_end(found[f"{key}"]) for key in ("cpu before", "cuda before", "cuda after")]
    return f"| {' | '.join(cells)} |"


def _verdict(row: dict[str, Any], found: dict[str, str]) -> str:
    if "reason" in row:
        return "void"
    if found["cuda after"]:
        return "accused"
    return "caught" if found["cuda before"] else "missed"


def _counts(title: str, ran: list[tuple[dict[str, Any], dict[str, str]]]) -> str:
    """Returns a sentence with the sums."""
    sums = Counter(_verdict(row, found) for row, found in ran)
    silent = sum(not found["cpu before"] for _, found in ran)
    return (
        f"Of {len(ran)} fixes {title}, npusim catches {sums['caught']} before the fix and is "
        f"silent after it, misses {sums['missed']} and accuses {sums['accused']}; {sums['void']} "
        f"programs are void. The CPU is silent before the fix in {silent}.\n"
    )


def write_page(rows: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """Returns the page."""
    ran = [(row, results[row["name"]]) for row in rows if row["name"] in results]
    kinds: dict[str, Counter[str]] = {}
    for row, found in ran:
        kinds.setdefault(row["about"], Counter())[_verdict(row, found)] += 1
    counts = "".join(
        _counts(title, [pair for pair in ran if pair[0].get("selected_first", False) is first])
        for title, first in (("that were listed before any ran", True), ("without a star", False))
    )
    by_kind = ["| about | fixes | caught | missed | accused | void |", "|---" * 6 + "|"]
    for kind, n in sorted(kinds.items(), key=lambda item: (-item[1].total(), item[0])):
        cells = (kind, n.total(), n["caught"], n["missed"], n["accused"], n["void"])
        by_kind.append(f"| {' | '.join(map(str, cells))} |")
    table = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    table += [_row(row, found) for row, found in ran]
    return HEAD + counts + "\n" + "\n".join(by_kind) + "\n\n" + "\n".join(table) + "\n"
