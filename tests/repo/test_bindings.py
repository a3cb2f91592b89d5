# SPDX-License-Identifier: BSD-3-Clause
"""Rules for every binding."""

import re

from repo.sources import CPP, shown, sources

FACTORY = re.compile(r"\.def\(\s*py::init\b")


def guarded_factories(text):
    """Yields the line numbers of factories that run without the GIL as a whole.

    pybind11 notes a new object in its tables after the factory, still under the guard: two at once
    end the process. A factory that waits releases the GIL in its body.
    """
    for match in FACTORY.finditer(text):
        depth, end = 0, match.start() + len(".def")
        while end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        if "call_guard" in text[match.start() : end]:
            yield text.count("\n", 0, match.start()) + 1


def test_factories_hold_the_gil():
    planted = """
        .def(py::init([](int rank) { return make(rank); }),
             py::call_guard<py::gil_scoped_release>())
        .def(py::init<>())
        .def("wait", &wait, py::call_guard<py::gil_scoped_release>())
    """
    assert list(guarded_factories(planted)) == [2]
    wrong = [
        shown(path, line)
        for path in sources("csrc", "lab", suffixes=CPP)
        for line in guarded_factories(path.read_text())
    ]
    assert wrong == []
