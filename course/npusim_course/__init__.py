# SPDX-License-Identifier: BSD-3-Clause
"""The puzzles of the course: `check("views-1", answer)` judges an answer, `hint("views-1")` helps.

Code enters if it states a puzzle or judges an answer. Answers run on the device of torch_npusim.
"""

from npusim_course.judge import Verdict, check, hint

__all__ = ["Verdict", "check", "hint"]
