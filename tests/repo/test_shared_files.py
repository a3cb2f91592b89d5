# SPDX-License-Identifier: BSD-3-Clause
"""A file that several distributions have is one file, with a link per distribution."""

from repo.sources import ROOT

LINKS = {
    "torch_npusim/_page_shell.py": "page_shell.py",
    "lab/npusim_lab/page_shell.py": "page_shell.py",
    "conformance/npusim_conformance/report/page_shell.py": "page_shell.py",
    "torch_npusim/_blame.py": "frames.py",
    "lab/npusim_lab/frames.py": "frames.py",
    "torch_npusim/_causes.py": "causes.py",
    "lab/npusim_lab/causes.py": "causes.py",
    "torch_npusim/_kinds.py": "kinds.py",
    "lab/npusim_lab/kinds.py": "kinds.py",
}
PACKAGES = ("torch_npusim", "lab/npusim_lab", "conformance/npusim_conformance")


def test_every_distribution_links_to_the_one_file():
    links = {
        str(path.relative_to(ROOT)): path.resolve()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.is_symlink()
    }
    assert links == {link: ROOT / "tools" / name for link, name in LINKS.items()}


def test_no_page_has_a_head_of_its_own():
    heads = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".html") and not path.is_symlink()
        if "<!doctype html" in path.read_text().lower()
    ]
    assert heads == []
