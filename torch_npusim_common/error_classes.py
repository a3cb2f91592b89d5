# SPDX-License-Identifier: BSD-3-Clause
"""Errors of the checks by the text of their messages. pytest is not imported here."""

# Class of an error, in a baseline and on the page of try-suite -> pattern of its text.
CLASSES = {
    "wait": "called a synchronizing",
    "leak": "the test left",
    "race": "RaceError",
    "determinism": "does not have a deterministic implementation",
    "assert": "device-side assert triggered",
    "refusal": r"\(NPUSIM_RULES=cuda\)",
}
