# SPDX-License-Identifier: BSD-3-Clause
"""`npusim try-suite`: two runs of a suite, and one page."""

from torch_npusim import cli

TESTS = """\
import pytest, torch, mylib
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
def test_right():
    assert mylib.total(torch.ones(3, device=DEVICE)) == 3
def test_mixes():
    torch.ones(3, device=DEVICE) + torch.arange(3)
def test_leaks():
    mylib.KEPT.append(torch.ones(3, device=DEVICE))
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_of_a_gpu():
    assert torch.ones(3, device="cuda").is_cuda
@pytest.mark.parametrize("object", [object()], ids=repr)  # another address in each run
def test_wrong_everywhere(object):
    assert DEVICE is None
"""
LIBRARY = "KEPT = []\ndef total(x):\n    return x.sum().item()\n"
PAGE = """\
tests                                CPU  npusim
  passed                               3       3
  failed                               1       2
  skipped                              1       0
  xfailed                              0       0
  not collected                        0       0
  used a device                                4
  skipped or absent without a device           1, of which 1 pass
fail on npusim alone: 1
  mixed devices: 1
    test_it.py::test_mixes
      RuntimeError: Expected all tensors to be on the same device"""
END = """
  leak: 1
    test_it.py::test_leaks
      the test left 12 B of device memory
waits for the device outside of the tests' own files: 1
       1  aten::_local_scalar_dense at mylib.py:3
"""


def test_one_page_says_what_a_device_adds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {"test_it.py": TESTS, "mylib.py": LIBRARY, "pytest.ini": "[pytest]\npythonpath = ."}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cli.main(["try-suite", "test_it.py"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(PAGE), said
    assert said.endswith(END), said
