# SPDX-License-Identifier: BSD-3-Clause
"""Runs of pytest in processes of their own: the plugin is about what happens when one starts."""

import re
import textwrap
from dataclasses import dataclass

import pytest
from processes import python, without_npusim


@dataclass
class Run:
    """A finished run of pytest."""

    code: int
    output: str

    def __post_init__(self):
        pattern = r"^(PASSED|FAILED|ERROR) (\S+)"  # the line of a skipped test has no name
        self.outcomes = {
            (match[2].split("::")[-1], match[1])
            for match in re.finditer(pattern, self.output, re.M)
        }

    def passed(self):
        return {name for name, outcome in self.outcomes if outcome == "PASSED"}

    def section(self, title):
        """Returns the text below the line "____ title ____" or "==== title ====" to the next."""
        match = re.search(
            rf"^[_=]{{2,}} {re.escape(title)} [_=]{{2,}}$\n(.*?)(?=^[_=]{{5,}} |\Z)",
            self.output,
            re.M | re.S,
        )
        assert match is not None, f"no section {title!r} in\n{self.output}"
        return match[1]

    def leak_of(self, test):
        return self.section(f"ERROR at teardown of {test}")


@pytest.fixture(scope="session")
def run_pytest(tmp_path_factory):
    """Runs pytest on files given by name and text, in a folder and a process of their own."""

    def run(files, *arguments, environment=None):
        folder = tmp_path_factory.mktemp("run")
        for name, text in {"pytest.ini": "[pytest]\npythonpath = .\n", **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        variables = without_npusim(OMP_NUM_THREADS="1", **(environment or {}))
        command = ["-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments]
        done = python(*command, env=variables, cwd=folder)
        return Run(done.returncode, done.stdout + done.stderr)

    return run
