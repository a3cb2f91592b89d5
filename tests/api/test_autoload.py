# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim_entry_points: a good guest in every `import torch` of the environment.

Installed packages are faked with dist-info folders on PYTHONPATH; the project itself too, so that
the tests do not depend on how it is installed.
"""

from importlib import metadata

import pytest
from processes import python, without_npusim
from repo.sources import ROOT

LOADED = "import sys, torch; print('torch_npusim' in sys.modules, hasattr(torch, 'npusim'))"


def install(folder, name, entry_point):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {entry_point}\n")


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages, with this project among them."""
    if not any(
        e.value.startswith("torch_npusim") for e in metadata.entry_points(group="torch.backends")
    ):
        install(tmp_path, "torch_npusim", "torch_npusim_entry_points:autoload")
    return tmp_path


@pytest.fixture
def import_torch(run_python, site):
    def run(script=LOADED, check=True, arguments=(), **environment):
        environment["PYTHONPATH"] = f"{site}:{ROOT}"
        return run_python(script, environment=environment, check=check, arguments=arguments)

    return run


def add_other_backend(site, body="def autoload(): pass\n"):
    (site / "other_backend.py").write_text(body)
    install(site, "other-backend", "other_backend:autoload")


def test_import_torch_brings_the_device(import_torch):
    script = f"{LOADED}; print(torch.ones(2, device='npusim').sum().item())"
    assert import_torch(script) == "True True\n2.0\n"


def test_never_on_request(import_torch):
    assert import_torch(NPUSIM_AUTOLOAD="0") == "False False\n"


def test_explicit_import_works_after_stepping_back(import_torch, site):
    add_other_backend(site)
    script = f"{LOADED}; import torch_npusim; print(torch.ones(2, device='npusim').sum().item())"
    assert import_torch(script) == "False False\n2.0\n"


def test_explicit_import_may_come_first(import_torch):
    script = "import torch_npusim, torch, torch.npusim.memory; print(torch.npusim.device_count())"
    assert import_torch(script) == "2\n"


def test_steps_back_silently_for_another_backend(import_torch, site):
    add_other_backend(site)
    done = import_torch(check=False)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_steps_back_when_the_slot_is_taken(import_torch, site):
    add_other_backend(
        site, "import torch\ndef autoload(): torch.utils.rename_privateuse1_backend('other')\n"
    )
    done = import_torch(check=False)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_always_on_request(import_torch, site):
    add_other_backend(site)
    assert import_torch(NPUSIM_AUTOLOAD="1") == "True True\n"


def test_asked_for_but_impossible_is_one_warning(import_torch, site):
    # "aaa" sorts first, but the order of entry points is not promised: take the slot either way.
    add_other_backend(
        site,
        "import torch\n"
        "def autoload():\n"
        "    if torch._C._get_privateuse1_backend_name() == 'privateuseone':\n"
        "        torch.utils.rename_privateuse1_backend('other')\n",
    )
    done = import_torch("import torch; print('went on')", check=False, NPUSIM_AUTOLOAD="1")
    assert done.stdout == "went on\n"
    # None if ours came first and has the slot. (A warning is shown with its line of source, too.)
    assert done.stderr.count("RuntimeWarning: torch_npusim was not loaded") <= 1


@pytest.mark.parametrize("arguments", [(), ("-W", "error")])
def test_a_failure_never_reaches_import_torch(import_torch, arguments):
    done = import_torch(
        "import torch; print('went on')",
        check=False,
        arguments=arguments,
        NPUSIM_DEVICE_COUNT="many",
    )
    assert done.stdout == "went on\n", done.stderr
    assert done.stderr.count("not loaded: NPUSIM_DEVICE_COUNT") == 1


def test_a_folder_that_hides_the_package_is_named(site):
    for package in ("torch_npusim_common", "torch_npusim_entry_points"):
        (site / package).symlink_to(ROOT / package)
    (site / "torch_npusim").mkdir()  # a clone, beside the program
    done = python(
        *("-c", "import torch; print('went on')"),
        env=without_npusim(PYTHONPATH=str(site)),
        cwd=site,
    )
    assert done.stdout == "went on\n", done.stderr
    assert f"the folder {site / 'torch_npusim'} hides the package" in done.stderr


def test_steps_back_for_a_real_accelerator(monkeypatch):
    import torch

    import torch_npusim_entry_points

    monkeypatch.delenv("NPUSIM_AUTOLOAD", raising=False)
    monkeypatch.setattr(torch_npusim_entry_points, "_privateuse1_is_taken", lambda: False)
    monkeypatch.setattr(torch_npusim_entry_points, "other_backends", list)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not torch_npusim_entry_points._wanted()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert torch_npusim_entry_points._wanted()


def test_deciding_imports_nothing_of_the_package():
    # An editable install has a finder of its own among the modules.
    script = """
import sys, torch_npusim_entry_points
print([m for m in sorted(sys.modules) if "torch" in m and not m.startswith("__editable__")])
"""
    done = python("-c", script, check=True, cwd=ROOT)
    ours = ["torch_npusim_common", "torch_npusim_common.loading", "torch_npusim_entry_points"]
    assert done.stdout == f"{ours}\n"
