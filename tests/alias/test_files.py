# SPDX-License-Identifier: BSD-3-Clause
"""torch.save and torch.load: files from CUDA machines, and every form of map_location."""

import contextlib
import io

import pytest
import torch

from torch_npusim import cuda_alias

NPUSIM = torch.device("npusim", 0)
SECOND = torch.device("npusim", 1)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.fixture
def from_cuda(monkeypatch):
    """A checkpoint as a CUDA machine writes it: its storages are marked cuda:0 and cuda:1."""
    marks = iter(["cuda:0", "cuda:1"])
    with monkeypatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: next(marks))
        return saved({"a": torch.arange(3.0), "b": torch.arange(4.0)})


def test_files_from_cuda_load_to_the_same_indices(from_cuda):
    loaded = torch.load(from_cuda)
    assert loaded["a"].device == NPUSIM
    assert loaded["b"].device == SECOND
    assert loaded["b"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("map_location", "devices"),
    [
        ("cuda", (NPUSIM, NPUSIM)),
        ("cuda:1", (SECOND, SECOND)),
        (torch.device("npusim:1"), (SECOND, SECOND)),
        ("cpu", (torch.device("cpu"), torch.device("cpu"))),
        ({"cuda:1": "cuda:0"}, (NPUSIM, NPUSIM)),
        ({"cuda:0": "cpu"}, (torch.device("cpu"), SECOND)),
        (lambda storage, location: storage, (torch.device("cpu"), torch.device("cpu"))),
        (lambda storage, location: storage.cuda(1), (SECOND, SECOND)),
        (lambda storage, location: storage.cuda(), (NPUSIM, NPUSIM)),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(from_cuda, map_location, devices, weights_only):
    loaded = torch.load(from_cuda, map_location=map_location, weights_only=weights_only)
    assert (loaded["a"].device, loaded["b"].device) == devices


def test_an_index_that_does_not_exist_names_the_remedy():
    with pytest.raises(RuntimeError, match=r"device_count\(\) is 2.*map_location"):
        torch.load(saved(torch.ones(1)), map_location="cuda:5")


def test_what_the_alias_saves_loads_as_a_file_of_cuda(run_script, tmp_path):
    torch.save({"w": torch.arange(3.0, device="cuda:1")}, tmp_path / "w.pt")
    script = f"""
        import torch
        print(torch.load({str(tmp_path / "w.pt")!r}, map_location="cpu")["w"].tolist())
        seen = []
        torch.load({str(tmp_path / "w.pt")!r}, map_location=lambda s, tag: seen.append(tag) or s)
        print(seen)
    """
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert run_script(script, environment=environment).stdout == "[0.0, 1.0, 2.0]\n['cuda:1']\n"


def test_what_npusim_saved_loads_under_the_alias(tmp_path):
    with without_alias():
        torch.save(torch.arange(3.0, device="npusim:1"), tmp_path / "w.pt")
    assert torch.load(tmp_path / "w.pt").device == SECOND
    assert torch.load(tmp_path / "w.pt", map_location={"npusim:1": "cuda:0"}).device == NPUSIM


@contextlib.contextmanager
def without_alias():
    cuda_alias.disable()
    try:
        yield
    finally:
        cuda_alias.enable()


def test_a_scripted_module_from_cuda_loads(tmp_path):
    class Shift(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(1, device=torch.device("cuda:1"))

    torch.jit.script(Shift()).save(str(tmp_path / "shift.pt"))
    loaded = torch.jit.load(str(tmp_path / "shift.pt"), map_location="cuda:1")
    assert loaded(torch.zeros(1, device="cuda:1")).device == SECOND
