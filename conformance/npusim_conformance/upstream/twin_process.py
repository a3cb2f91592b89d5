# SPDX-License-Identifier: BSD-3-Clause
"""The CPU twin: a process without the backend that runs upstream tests by name (see twin.py)."""

import json
import os
import sys
from dataclasses import asdict

from npusim_conformance.processes import end_with_parent
from npusim_conformance.upstream.collection import prepare_environment
from npusim_conformance.upstream.execution import execute_twin


def main() -> None:
    """Answers each line of a process, whose id is given, [root, name], by what the test did."""
    end_with_parent(int(sys.argv[1]))  # a worker may be killed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # tests print
    prepare_environment("cpu")
    for line in sys.stdin:
        root, name = json.loads(line)
        try:
            attempt = execute_twin(root, name)
        except Exception:  # the file does not load for the CPU
            attempt = None
        answers.write(json.dumps(asdict(attempt) if attempt is not None else None) + "\n")


if __name__ == "__main__":
    main()
