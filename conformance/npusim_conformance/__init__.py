# SPDX-License-Identifier: BSD-3-Clause
"""Conformance kit for PyTorch backends: the working parts of a device, the broken parts, and why.

Most people use the command `npusim-conformance`. The rooms, lowest first; each imports only rooms
above it in this list, and its `__init__.py` says what may enter:

    (this folder)  case.py, verdict.py, processes.py: words and tools of every room
    backend        the backend under test: expectations, census, the loaded device
    inputs         subjects, samples, their copies and variations
    judge          agreement, diagnosis, attribution, scripts
    properties     questions about operators, modules, optimizers, lists
    contracts      questions about a device that concern no operator
    cases          the catalog: which cases exist, which are selected
    upstream       PyTorch's own test files as cases
    fuzz           calls with unusual arguments
    record         the log, and what a log adds up to
    run            workers and their supervision
    remote         execution on other machines
    report         files made from a log
    cli            the subcommands

Nothing is imported here: a worker decides in which order torch and the backend load.
"""

__version__ = "0.1.0"
