# SPDX-License-Identifier: BSD-3-Clause
"""sim.synchronisation: every wait is counted where it was caused, and some are allowed."""

import inspect
import threading
import warnings
from pathlib import Path

import pytest
import torch

from torch_npusim.sim.synchronisation import allow, record

HERE = Path(__file__).name


def line_of(function, text):
    """Returns the number of the line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(
        number for number, line in enumerate(lines) if text in line and "line_of" not in line
    )


def seen(recording):
    """Returns {(what, line): count} of the waits in this file."""
    assert {Path(sync.file).name for sync in recording.counts()} <= {HERE}
    return {(sync.what, sync.line): count for sync, count in recording.counts().items()}


@pytest.fixture
def x():
    return torch.arange(3.0, device="npusim")


def waits_of_every_kind(x):
    for _ in range(3):
        x.sum().item()
    x.tolist()
    bool(x[0])
    x.nonzero()
    x[x > 1]
    x.unique()
    torch.ones(2).to("npusim")
    torch.npusim.synchronize()
    torch.accelerator.synchronize()
    torch.npusim.current_stream().synchronize()
    torch.npusim.current_stream().record_event().synchronize()


def test_waits_are_counted_by_line_and_kind(x):
    with record() as recording:
        waits_of_every_kind(x)
    expected = [
        (".item()", "aten::_local_scalar_dense", 3, True),
        ("tolist", "aten::copy_ to the host", 1, True),
        ("bool(", "aten::_local_scalar_dense", 1, True),
        ("nonzero", "aten::nonzero", 1, True),
        ("x[x > 1]", "aten::index.Tensor", 1, True),
        ("unique", "aten::_unique2", 1, True),
        ("torch.ones", "aten::copy_ to the device", 1, True),
        ("torch.npusim.synchronize", "synchronize", 1, False),
        ("torch.accelerator.synchronize", "synchronize", 1, False),
        ("stream().synchronize", "Stream.synchronize", 1, True),
        ("record_event()", "Event.synchronize", 1, False),
    ]
    assert [
        (sync.line, sync.what, count, sync.reported) for sync, count in recording.counts().items()
    ] == [
        (line_of(waits_of_every_kind, text), what, count, reported)
        for text, what, count, reported in expected
    ]
    assert {sync.function for sync in recording.counts()} == {"waits_of_every_kind"}
    assert recording.total() == 10


def test_printing_counts_once_however_many_scalars_it_reads(x):
    with record() as recording:
        for _ in range(4):
            repr(x)
        str(torch.eye(20, device="npusim"))
    lines = {"repr(x)": 4, "str(": 1}
    assert seen(recording) == {
        ("printing", line_of(test_printing_counts_once_however_many_scalars_it_reads, text)): count
        for text, count in lines.items()
    }


def test_a_wait_inside_torch_belongs_to_the_caller(x):
    optimizer = torch.optim.Adam([x.requires_grad_()], lr=0.1, capturable=False)
    x.grad = torch.ones_like(x)
    with record() as recording:
        torch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)
        optimizer.step()
    line = line_of(test_a_wait_inside_torch_belongs_to_the_caller, "clip_grad_norm_")
    assert seen(recording) == {("aten::_local_scalar_dense", line): 1}


class WaitsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        gradient.sum().item()
        return gradient


def wait_in_backward(x):
    WaitsInBackward.apply(x.requires_grad_()).sum().backward()


def test_a_wait_in_a_backward_function_belongs_to_it(x):
    with record() as recording:
        wait_in_backward(x)
    line = line_of(WaitsInBackward, ".item()")
    assert seen(recording) == {("aten::_local_scalar_dense", line): 1}


def test_a_wait_in_the_engine_belongs_to_who_started_it(x):
    y = x.requires_grad_() * 1
    selected = y[x > 0]  # its gradient puts values under the mask, in a thread of the engine
    with record() as recording:
        selected.sum().backward()
    line = line_of(test_a_wait_in_the_engine_belongs_to_who_started_it, ".backward()")
    assert seen(recording) == {("aten::_index_put_impl_", line): 1}


def test_other_threads_are_recorded_too(x):
    def wait():
        x.sum().item()

    with record() as recording:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert list(seen(recording).values()) == [1]


def test_recordings_nest(x):
    with record() as outer:
        x[0].item()
        with record() as inner:
            x[1].item()
    x[2].item()
    assert (outer.total(), inner.total()) == (2, 1)


def test_a_recording_reads_as_a_table(x):
    with record() as recording:
        x[0].item()
        torch.npusim.synchronize()
    header, first, second = str(recording).splitlines()
    assert header.split() == ["count", "what", "where"]
    assert first.split()[:2] == ["1", "aten::_local_scalar_dense"]
    assert first.endswith("x[0].item()")
    assert second.split()[:2] == ["1", "(synchronize)"]
    with record() as nothing:
        x + 1
    assert str(nothing) == "no host synchronisation"


def test_a_warning_names_the_call_site(x):
    torch.npusim.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        repr(x)
    assert [(warning.lineno, Path(warning.filename).name) for warning in caught] == [
        (line_of(test_a_warning_names_the_call_site, "repr(x)"), HERE)
    ]


def test_a_warning_that_is_an_error_keeps_its_type(x):
    torch.npusim.set_sync_debug_mode("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="called a synchronizing npusim operation"):
            x[0].item()
        with pytest.raises(UserWarning, match="called a synchronizing npusim operation"):
            wait_in_backward(x)


class TestAllow:
    @pytest.fixture(autouse=True)
    def _refuse(self):
        torch.npusim.set_sync_debug_mode("error")

    def test_everything(self, x):
        with allow():
            assert x[2].item() == 2
            assert x.tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError, match="synchronizing"):
            x[2].item()

    def test_some_operations_only(self, x):
        with allow("aten::_local*", "printing"):
            x[2].item()
            repr(x)
            with pytest.raises(RuntimeError, match="aten::nonzero"):
                x.nonzero()

    def test_some_files_only(self, x):
        with allow(files=[f"*/{HERE}"]):
            x[2].item()
        with (
            allow(files=["*/another_file.py"]),
            pytest.raises(RuntimeError, match="synchronizing"),
        ):
            x[2].item()

    def test_allowances_add_up(self, x):
        with allow("aten::_local_scalar_dense"), allow("aten::nonzero"):
            x[2].item()
            x.nonzero()

    def test_it_follows_into_the_threads_of_the_engine(self, x):
        with allow("aten::_local_scalar_dense"):
            wait_in_backward(x)
        with pytest.raises(RuntimeError, match="synchronizing"):
            wait_in_backward(x)

    def test_it_does_not_reach_other_threads(self, x):
        errors = []

        def wait():
            try:
                x.sum().item()
            except RuntimeError as error:
                errors.append(str(error))

        with allow():
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join()
        assert ["synchronizing" in error for error in errors] == [True]

    def test_what_is_allowed_is_still_counted(self, x):
        with record() as recording, allow():
            x[0].item()
        assert [sync.reported for sync in recording.counts()] == [False]
        assert recording.total() == 0
