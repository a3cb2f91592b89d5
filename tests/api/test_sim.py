# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.sim: the clock, fallback policy, strict alignment, poison, knobs."""

import inspect
import re

import pytest
import torch

from torch_npusim import sim
from torch_npusim.sim import alignment, clock, fallback, knobs, poison


def test_time_passes_only_by_work():
    before = clock.host_time_ns()
    assert clock.host_time_ns() == before
    torch.ones(3, device="npusim")
    assert clock.host_time_ns() > before


def test_time_can_be_advanced():
    before = clock.host_time_ns()
    clock.advance(1_000_000)
    assert clock.host_time_ns() == before + 1_000_000


def test_time_does_not_go_back():
    with pytest.raises(RuntimeError, match="-1"):
        clock.advance(-1)


def test_advancing_far_enough_finishes_a_stream():
    stream = torch.npusim.Stream()
    with stream:
        torch.zeros(1 << 22, device="npusim")
    assert clock.stream_time_ns(stream) > clock.host_time_ns()
    clock.advance(clock.stream_time_ns(stream) - clock.host_time_ns())
    assert stream.query()


def test_the_same_program_takes_the_same_virtual_time(run_python):
    script = """
        import torch, torch_npusim
        from torch_npusim.sim import clock
        x = torch.randn(100, 100, device="npusim")
        for _ in range(3): x = (x @ x).relu() / x.sum()
        x.cpu()
        print(clock.host_time_ns(), clock.stream_time_ns(), x.data_ptr() % (1 << 21))
        """
    assert run_python(script) == run_python(script)


def test_fallback_policy_is_put_back():
    before = fallback.policy()
    with fallback.use_policy("warn"):
        assert fallback.policy() == "warn"
    assert fallback.policy() == before


@pytest.mark.parametrize(
    ("set_wrong", "accepted"),
    [
        (lambda: fallback.set_policy("loud"), "'silent', 'warn', 'error'"),
        (lambda: alignment.set_mode("loud"), "'off', 'error', 'copy'"),
        (lambda: poison.set_mode("loud"), "'off', 'freed', 'fresh', 'all'"),
    ],
)
def test_wrong_modes_are_named(set_wrong, accepted):
    with pytest.raises(ValueError, match=f"loud.*{accepted}"):
        set_wrong()


def test_knobs_are_read_from_the_environment(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        from torch_npusim.sim import alignment, fallback, knobs, poison
        (knob,) = [k for k in knobs.knobs() if k.name == "NPUSIM_DEVICE_COUNT"]
        print(torch.npusim.device_count(), knob.value, knob.origin, knob.default)
        print(fallback.policy(), alignment.mode(), poison.mode())
        print(torch.npusim.get_device_properties().total_memory)
        """,
        environment={
            "NPUSIM_DEVICE_COUNT": "3",
            "NPUSIM_FALLBACK": "warn",
            "NPUSIM_STRICT_ALIGN": "copy",
            "NPUSIM_POISON": "all",
            "NPUSIM_DEVICE_MEMORY": "1GiB",
        },
    )
    assert text == "3 3 environment 2\nwarn copy all\n1073741824\n"


def test_every_knob_has_a_documented_row():
    for knob in knobs.knobs():
        assert knob.name.startswith("NPUSIM_")
        assert knob.values
        assert re.fullmatch(r"\w.{25,}\.", knob.doc)
        assert knob.stability in ("stable", "experimental", "internal")


def test_memory_backing_says_whether_host_code_is_kept_out():
    torch.npusim.init()
    assert knobs.memory_backing() == "anonymous memory, isolated"


def test_every_module_of_sim_is_public():
    assert sorted(sim.__all__) == sim.__all__
    for name in sim.__all__:
        public = getattr(sim, name)
        assert public.__all__ if inspect.ismodule(public) else public.__doc__
