# SPDX-License-Identifier: BSD-3-Clause
"""The text of a report, and its ways to the user."""

import warnings

import pytest
import torch

from torch_npusim._blame import short_path
from torch_npusim.sim import races

NPU = "npusim"


@pytest.fixture
def mode():
    """Sets the mode, and what it was at the end."""
    before = torch.npusim.get_race_detection()
    yield torch.npusim.set_race_detection
    torch.npusim.set_race_detection(before)


def unordered() -> torch.Tensor:
    x = torch.zeros(8, 8, device=NPU)
    with torch.Stream(NPU):
        return x + 1


def test_an_error_is_raised_at_the_second_access_and_all_is_usable(mode):  # (rule V4)
    mode("error")
    with pytest.raises(torch.npusim.RaceError, match="wait_stream is missing") as raised:
        unordered()
    race = raised.value.races[0]
    assert race.first.name == "aten::zero_"
    assert race.second.name.startswith("aten::add")
    assert (race.first.dtype, race.first.shape) == ("float32", (8, 8))
    assert race.first.written
    assert not race.second.written
    assert (race.device, race.bytes) == (0, 256)
    for site in (race.first.site, race.second.site, race.allocated):
        assert site.call()[0] == __file__
        assert site.call()[2] == "unordered"
    assert (torch.ones(3, device=NPU) + 1).sum().item() == 6


def test_a_report_is_a_warning_at_the_line_and_comes_once(mode):  # (rule V8)
    mode("report")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            unordered()
    assert {warning.category for warning in caught} == {races.RaceWarning}
    assert caught[0].filename == short_path(__file__)
    # The read without an order; and x, freed before the read is over, when the next one is made.
    assert [str(warning.message).splitlines()[0] for warning in caught] == [
        "npusim: data race (wait_stream is missing)",
        "npusim: data race (record_stream is missing)",
    ]


def test_nothing_is_said_when_off(mode):  # (rule V2)
    mode("off")
    unordered()


def test_a_mode_of_another_name_is_refused(mode):
    with pytest.raises(ValueError, match="expected one of 'off', 'report', 'error'"):
        mode("loud")


def test_a_host_operator_raises_when_it_has_returned(mode):  # (rule V7)
    mode("error")
    landed = torch.empty(64, pin_memory=True)
    landed.copy_(torch.ones(64, device=NPU), non_blocking=True)
    with pytest.raises(torch.npusim.RaceError, match="synchronize is missing"):
        landed.sum()
    torch.npusim.synchronize()
    assert landed.sum() == 64


def test_the_host_may_read_what_an_upload_reads_and_not_write_to_it(mode):  # (rule V7)
    mode("error")
    source = torch.ones(64, pin_memory=True)
    there = source.to(NPU, non_blocking=True)
    assert source.sum() == 64
    with pytest.raises(torch.npusim.RaceError, match="event is missing"):
        source.add_(1)
    torch.npusim.synchronize()
    assert there.sum() == 64


def test_a_backward_names_its_node_and_the_line_of_its_forward():
    with races.record() as recorded:
        x = torch.ones(8, device=NPU, requires_grad=True)
        y = (x * x).sum()  # forward
        side = torch.Stream(NPU)
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            x.data.fill_(2.0)  # the backward reads x
        y.backward()
    race = recorded.races[0]
    assert race.second.site.node == "MulBackward0"
    assert race.second.site.frames == ()
    file, line, _ = race.second.site.forward[0]
    assert file == __file__
    assert "# forward" in open(__file__).read().splitlines()[line - 1]
    assert "in MulBackward0 of a backward pass, whose forward was at" in str(race)


def run_by(runner: str, line: str) -> dict[str, object]:
    """Runs `line` below a function of a file of that name, and returns the names it defines."""
    names: dict[str, object] = {}
    exec(compile("def call(f): return f()", runner, "exec"), names)
    return names["call"](lambda: eval(compile(line, "train.py", "eval"), globals()))


@pytest.mark.parametrize(
    "runner",
    [
        "/lib/site-packages/_pytest/python.py", "/lib/site-packages/pluggy/_callers.py",
        "/lib/site-packages/xdist/remote.py", "/lib/python3.11/unittest/case.py",
        "/lib/python3.11/runpy.py", "<frozen runpy>", "/work/.venv/bin/torchrun",
    ],
)  # fmt: skip
def test_a_report_does_not_show_what_ran_the_program(runner):
    with races.record() as recorded:
        run_by(runner, "unordered()")
    text = str(recorded.races[0])
    assert "in unordered" in text
    assert runner not in text
    assert "_pytest" not in text
    assert "pluggy" not in text
    assert "<module>" not in text


def test_the_place_itself_is_shown_without_the_word_module():
    with races.record() as recorded:
        program = compile("x = torch.zeros(8, device='npusim')\nwith torch.Stream('npusim'): x + 1",
                          "train.py", "exec")  # fmt: skip
        exec(program, {"torch": torch})
    lines = [line.strip() for line in str(recorded.races[0]).splitlines()]
    assert "train.py:1" in lines
    assert "train.py:2" in lines


def test_a_backward_without_a_known_line_says_so():
    site = races.Site(node="AddBackward0")
    access = races.Access("aten::add", 0, 0, True, "float32", (8,), site)
    race = races.Race("wait_stream", access, access, races.Site(), races.Site(), 32, 0, 0, True)
    assert "in AddBackward0 of a backward pass; the line of its forward is not known" in str(race)


def test_memory_of_like_and_new_is_not_read():
    with races.record() as recorded:
        x = torch.zeros(8, device=NPU)
        with torch.Stream(NPU):
            torch.empty_like(x)
            x.new_zeros(4)
            torch.zeros_like(x)
    assert recorded.races == []


def test_one_half_of_the_columns_each_is_no_race():  # (rule V4)
    side = torch.Stream(NPU)
    with races.record() as recorded:
        x = torch.empty(16, 32, device=NPU)
        x[:, :16].fill_(1.0)
        with side:
            x[:, 16:].fill_(2.0)
        assert recorded.races == []
        with side:
            x[:, 15:].fill_(2.0)
    assert [race.missing for race in recorded.races] == ["wait_stream"]


def test_what_was_allocated_before_the_watch_is_known():  # (rule V4)
    x = torch.empty(8, device=NPU)
    landed = torch.empty(8, pin_memory=True)
    with races.record() as recorded:
        x.zero_()
        with torch.Stream(NPU):
            x.add_(1)
        landed.copy_(x, non_blocking=True)
        landed.add_(1)
    assert [race.missing for race in recorded.races] == [
        "wait_stream",
        "wait_stream",
        "synchronize",
    ]


def test_a_value_read_by_the_host_knows_its_own_stream_only():  # (rules V5, V7)
    side = torch.Stream(NPU)
    with races.record() as recorded:
        x = torch.zeros((), device=NPU)
        x.item()
        with side:
            x.add_(1)
        x.item()
    assert [race.second.name for race in recorded.races] == ["aten::_local_scalar_dense"]


def test_threads_of_the_host_are_one_party():  # (rule V5)
    import threading

    with races.record() as recorded:
        x = torch.zeros(8, device=NPU)
        thread = threading.Thread(target=lambda: x.add_(1))
        thread.start()
        thread.join()
        x.sum().item()
    assert recorded.races == []


def test_one_missing_record_stream_is_one_report():  # (rule V8)
    side = torch.npusim.Stream()
    with races.record() as recorded:
        x = torch.zeros(1 << 16, device=NPU)
        side.wait_stream(torch.npusim.current_stream())
        with torch.npusim.stream(side):
            y = x + 1
            z = x * y
            z.add_(x)
        del x
        torch.zeros(1 << 16, device=NPU)
    assert [race.missing for race in recorded.races] == ["record_stream"]
    assert recorded.races[0].first.name.startswith("aten::add_")


def download_over_an_array(wait):
    """Reads a download through an array, too early or while the next one runs."""
    source = torch.ones(1 << 16, device=NPU)
    target = torch.empty(1 << 16, pin_memory=True)
    target.copy_(source, non_blocking=True)
    array = target.numpy()
    if wait:
        torch.npusim.synchronize()
        target.copy_(source, non_blocking=True)
    del array
    return (source + 1).sum()


def test_an_array_that_goes_counts_as_read_before_later_downloads(mode):  # (rule V4)
    mode("error")
    download_over_an_array(wait=True)


def test_an_array_that_goes_before_its_download_is_over_was_read_too_early(mode):  # (rule V4)
    mode("error")
    with pytest.raises(torch.npusim.RaceError, match="synchronize is missing"):
        download_over_an_array(wait=False)
