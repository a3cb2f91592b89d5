# SPDX-License-Identifier: BSD-3-Clause
"""badge.json: one line for a README, in the format of shields.io's endpoint badge."""

import json

from npusim_conformance.record.summary import Summary
from npusim_conformance.report.comparison import Comparison


def render(summary: Summary, comparison: Comparison | None) -> str:
    """The text of the file. Green only if something ran and nothing was unexpected."""
    if summary.result == "empty":
        message, colour = "nothing executed", "lightgrey"
    else:
        message = f"{summary.passed} of {summary.executed} passed"
        colour = "brightgreen"
        if summary.unexpected:
            message += f", {summary.unexpected} unexpected"
            share = summary.unexpected / summary.executed
            colour = "orange" if share < 0.05 else "red"
    badge = {
        "schemaVersion": 1,
        "label": f"conformance {summary.head['device']}",
        "message": message,
        "color": colour,
    }
    return json.dumps(badge, indent=1) + "\n"
