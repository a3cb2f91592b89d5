# SPDX-License-Identifier: BSD-3-Clause
"""The sdists of the distributions are complete, and what they say of themselves agrees.

That they build, and that the wheels work, takes minutes: `make wheels` and `make wheels-test`.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest
from packaging.requirements import Requirement
from processes import python
from repo.sources import ROOT

from npusim_conformance.inputs import torch_testing

sys.path.insert(0, str(ROOT / "tools"))
import build_wheels
from check_env import TORCH_SUPPORTED

NOT_SOURCE = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "*.so", "*.built_for", "__pycache__"
)
PROJECTS = build_wheels.PROJECTS
INCLUDE = re.compile(r'^\s*#\s*include\s+"((?:backend|allocator|csrc)/[^"]+)"', re.M)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout: setuptools writes into the tree that it packs."""
    copy = tmp_path_factory.mktemp("checkout") / "source"
    shutil.copytree(ROOT, copy, ignore=NOT_SOURCE, symlinks=True)
    return copy


@pytest.fixture(scope="module", params=PROJECTS)
def project(request, checkout, tmp_path_factory):
    """Returns (the project's folder, its sdist, the unpacked sdist)."""
    out = tmp_path_factory.mktemp("sdist")
    folder = checkout / request.param
    command = ["-m", "build", "--sdist", "--no-isolation", "--outdir", out, folder]
    done = python(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", sdist, "-C", out], check=True)
    return folder, sdist, next(path for path in out.iterdir() if path.is_dir())


def test_the_sdist_has_all_that_the_packages_have(project):
    folder, sdist, _ = project
    assert len(list(build_wheels.sources(folder))) > 10
    assert list(build_wheels.sdist_problems(folder, sdist)) == []


def test_links_are_packed_as_the_files_that_they_name(project):
    folder, _, unpacked = project
    links = [path for path in build_wheels.sources(folder) if (folder / path).is_symlink()]
    assert bool(links) == (folder.name not in ("course", "truth"))
    for link in links:
        assert not (unpacked / link).is_symlink()
        assert (unpacked / link).read_text() == (folder / link).read_text()


def test_every_header_of_ours_that_it_includes_is_in_it(project):
    _, _, unpacked = project
    (root,) = {path.parent for path in unpacked.rglob("CMakeLists.txt")} or {unpacked}
    included = {
        name
        for path in unpacked.rglob("*")
        if path.suffix in (".h", ".cpp")
        for name in INCLUDE.findall(path.read_text())
    }
    assert {name for name in included if not (root / name).exists()} == set()
    assert bool(included) == (root / "CMakeLists.txt").exists()


def test_a_problem_is_found(project, tmp_path):
    folder, sdist, unpacked = project
    lost = next(build_wheels.sources(folder))
    with tarfile.open(tmp_path / sdist.name, "w") as archive:
        for path in sorted(unpacked.rglob("*")):
            if path.relative_to(unpacked) != lost:
                archive.add(path, path.relative_to(unpacked.parent), recursive=False)
    problems = build_wheels.sdist_problems(folder, tmp_path / sdist.name)
    assert list(problems) == [f"{sdist.name} lacks {lost}"]


def test_the_kit_installs_beside_every_torch_that_the_device_supports():
    project = tomllib.loads((ROOT / "conformance" / "pyproject.toml").read_text())["project"]
    (torch,) = (need for need in map(Requirement, project["dependencies"]) if need.name == "torch")
    assert all(torch.specifier.contains(f"{minor}.0") for minor in TORCH_SUPPORTED)
    assert set(TORCH_SUPPORTED) <= set(torch_testing.SUPPORTED)


def test_the_four_have_one_version(checkout):
    versions = set()
    for project in PROJECTS:
        setup = ["-c", "import setuptools; setuptools.setup()"]
        if (checkout / project / "setup.py").exists():
            setup = ["setup.py"]
        command = [*setup, "--version"]
        done = python(*command, cwd=checkout / project)
        versions.add(done.stdout.split()[-1].partition("+")[0])
    assert len(versions) == 1, versions
