# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.sim: the clock, fallback policy, strict alignment, poison, knobs."""

import pytest
import torch

from torch_npusim import sim
from torch_npusim.sim import alignment, clock, fallback, poison, specs


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


def run_a_fallback():
    return torch.ones(5).to("npusim").logcumsumexp(0)


def test_fallbacks_are_counted():
    fallback.reset()
    run_a_fallback()
    run_a_fallback()
    assert fallback.counts()["aten::_logcumsumexp"] == 2
    fallback.reset()
    assert fallback.counts() == {}


def test_fallbacks_can_be_refused():
    with fallback.use_policy("error"), pytest.raises(RuntimeError, match="logcumsumexp"):
        run_a_fallback()
    run_a_fallback()


def test_fallback_policy_is_put_back():
    before = fallback.policy()
    with fallback.use_policy("warn"):
        assert fallback.policy() == "warn"
    assert fallback.policy() == before


def test_no_result_is_copied_in_ordinary_work():
    fallback.reset()
    torch.linalg.qr(torch.eye(3, device="npusim"))
    torch.arange(6, device="npusim").unique()
    assert fallback.copied_results() == {}


def test_strict_alignment_refuses_a_misaligned_view():
    x = torch.arange(9.0, device="npusim")
    assert x.data_ptr() % alignment.BOUNDARY_BYTES == 0
    with alignment.use_mode("error"):
        assert (x[8:] + 1).item() == 9
        with pytest.raises(RuntimeError, match=r"(?i)align"):
            x[1:] + 1
    assert (x[1:] + 1)[0].item() == 2


def test_strict_alignment_copies_and_counts():
    x = torch.arange(9.0, device="npusim")
    with alignment.use_mode("copy"):
        before = alignment.realigned_operands()
        assert (x[1:] + 1).tolist() == list(range(2, 10))
        assert alignment.realigned_operands() > before
        x[1:].add_(1)
    assert x.tolist() == [0, *range(2, 10)]


def test_fresh_memory_can_be_poisoned(empty_device):
    with poison.use_mode("fresh"):
        assert set(torch.empty(64, dtype=torch.uint8, device=empty_device).tolist()) == {0xD0}


def test_freed_memory_can_be_poisoned(empty_device):
    with poison.use_mode("freed"):
        x = torch.zeros(64, dtype=torch.uint8, device=empty_device)
        address = x.data_ptr()
        del x
        x = torch.empty(64, dtype=torch.uint8, device=empty_device)
    assert x.data_ptr() == address
    assert set(x.tolist()) == {0xDF}


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
        from torch_npusim.sim import alignment, fallback, poison, specs
        (knob,) = [k for k in specs.knobs() if k.name == "NPUSIM_DEVICE_COUNT"]
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
    for knob in specs.knobs():
        assert knob.name.startswith("NPUSIM_")
        assert knob.values
        assert knob.doc.endswith(".")
        assert knob.stability in ("stable", "experimental", "internal")


def test_memory_backing_says_whether_host_code_is_kept_out():
    torch.npusim.init()
    assert "isolat" in specs.memory_backing()


def test_every_module_of_sim_is_public():
    assert sorted(sim.__all__) == sim.__all__
    for name in sim.__all__:
        assert getattr(sim, name).__all__
