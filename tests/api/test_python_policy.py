# SPDX-License-Identifier: BSD-3-Clause
"""A placement policy written in Python behind the live device, in programs with one thread."""

import pytest
from repo.sources import ROOT

POLICY = ROOT / "tests" / "allocator" / "lab" / "policy_example.py"
NAME = f"{POLICY}:PowersOfTwo"

BAD = """
class Mine:
    def attach(self, device):
        self.device = device
        self.at = device.acquire(1 << 20)
    def malloc(self, bytes, stream):
        if bytes > 4000: return self.answer()
        self.at += 4096
        return self.at - 4096
    def free(self, address, bytes, stream): pass
class Word(Mine):
    def answer(self): return "here"
class Raises(Mine):
    def answer(self): return {}["lost"]
class Same(Mine):
    def answer(self): return self.at - 4096
class Odd(Mine):
    def answer(self): return self.at + 4
class Twice(Mine):
    def answer(self): self.device.release(5)
class Allocates(Mine):
    def answer(self):
        import torch
        return torch.empty(10, device="npusim").data_ptr()
class NoFree:
    def attach(self, device): pass
    def malloc(self, bytes, stream): pass
"""


def test_a_training_program_runs_and_its_blocks_are_the_policys(run_python):
    run_python(
        f"""
        import torch, torch_npusim
        model = torch.nn.Linear(100, 100).to("npusim")
        assert torch.npusim.get_allocator_backend() == {NAME!r}
        with torch.autograd.set_multithreading_enabled(False):
            for _ in range(3):
                model(torch.randn(9, 100, device="npusim")).sum().backward()
        kept = [torch.empty(1000, dtype=torch.uint8, device="npusim") for _ in range(3)]
        freed = kept[1].data_ptr()
        del kept[1]
        assert torch.empty(900, dtype=torch.uint8, device="npusim").data_ptr() == freed
        torch.npusim.empty_cache()
        assert torch.npusim.memory_allocated() > 0
        """,
        environment={"NPUSIM_ALLOCATOR": NAME},
    )


def test_a_class_is_made_once_per_device(run_python, tmp_path):
    (tmp_path / "mine.py").write_text(POLICY.read_text())
    run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch, torch_npusim
        from mine import PowersOfTwo
        torch.npusim.memory.change_current_allocator(PowersOfTwo)
        x = torch.ones(10, device="npusim:0")
        y = torch.ones(10, device="npusim:1")
        assert x.sum().item() + y.sum().item() == 20
        """,
        environment={"NPUSIM_DEVICE_COUNT": "2"},
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Word", "malloc returned 'here'; expected an address or None"),
        ("Raises", "malloc raised KeyError: 'lost'"),
        ("Same", "which is in use by malloc 0"),
        ("Odd", "which is not a multiple of 32"),
        ("Twice", "releases 5, which acquire() did not return"),
        ("Allocates", "uses the device that it serves"),
        ("NoFree", "has no method free; expected attach(device)"),
        ("Missing", "has no class Missing"),
    ],
)
def test_what_a_policy_does_wrong_is_said_and_what_is_live_stays(run_python, tmp_path, name, text):
    (tmp_path / "bad.py").write_text(BAD)
    run_python(
        f"""
        import torch, torch_npusim
        try:
            x = torch.ones(10, device="npusim")
            y = torch.empty(5000, dtype=torch.uint8, device="npusim")
        except (RuntimeError, ValueError) as error:
            assert {text!r} in str(error), error
        else:
            raise AssertionError("accepted")
        if {name!r} not in ("NoFree", "Missing"):
            assert x.tolist() == [1.0] * 10
            assert torch.ones(3, device="npusim").tolist() == [1.0] * 3
        """,
        environment={"NPUSIM_ALLOCATOR": f"{tmp_path / 'bad.py'}:{name}"},
    )


def test_a_second_thread_is_refused_by_name_and_its_frees_are_not(run_python):
    run_python(
        """
        import threading
        import torch, torch_npusim
        kept = [torch.ones(1000, device="npusim") for _ in range(3)]
        said = []
        def other():
            kept.pop()
            try:
                torch.ones(1000, device="npusim")
            except RuntimeError as error:
                said.append(str(error))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert "PowersOfTwo is in Python and serves one thread" in said[0], said
        before = torch.npusim.memory_allocated()
        w = torch.ones(5, device="npusim", requires_grad=True)
        try:
            (w * 2).sum().backward()
        except RuntimeError as error:
            assert "set_multithreading_enabled(False)" in str(error), error
        else:
            raise AssertionError("a backward pass has threads")
        assert torch.ones(7, device="npusim").tolist() == [1.0] * 7
        """,
        environment={"NPUSIM_ALLOCATOR": NAME},
    )


def test_the_garbage_collector_may_free_tensors_inside_the_policy(run_python, tmp_path):
    (tmp_path / "collects.py").write_text(
        "import gc\n"
        + POLICY.read_text().replace("class PowersOfTwo", "class Base")
        + "\n\nclass Collects(Base):\n"
        + "    def malloc(self, bytes, stream):\n"
        + "        gc.collect()\n"
        + "        return super().malloc(bytes, stream)\n"
    )
    run_python(
        """
        import gc
        import torch, torch_npusim
        gc.disable()
        for _ in range(20):
            ring = [torch.ones(100, device="npusim")]
            ring.append(ring)
        del ring
        x = torch.ones(10, device="npusim")
        y = torch.ones(10, device="npusim")
        assert torch.npusim.memory_allocated() < 5000
        assert (x + y).tolist() == [2.0] * 10
        """,
        environment={"NPUSIM_ALLOCATOR": f"{tmp_path / 'collects.py'}:Collects"},
    )


def test_a_recorded_run_replays_under_the_same_policy(run_python, tmp_path, monkeypatch):
    from npusim_lab.matching import agreement
    from npusim_lab.recording import record_script, replay_recorded

    monkeypatch.setenv("NPUSIM_ALLOCATOR", NAME)
    (tmp_path / "run.py").write_text(
        "import torch\n"
        "kept = [torch.empty(100 * k, device='npusim') for k in range(1, 50)]\n"
        "del kept[::3]\n"
        "kept += [torch.empty(100 * k, device='npusim') for k in range(1, 50)]\n"
    )
    trace = record_script(tmp_path / "run.py")
    same = agreement(trace, replay_recorded(trace))
    assert same.equal == same.compared == trace.compiled.mallocs == 98
