# SPDX-License-Identifier: BSD-3-Clause
"""A dry run's memory is that of the real run: peaks, and every allocation with its address."""

import json
from itertools import groupby

import pytest
import torch
import torch.nn.functional as F
from processes import python
from profiling import memory_programs
from profiling.memory_programs import PROGRAMS

from torch_npusim.sim import dry_run

AUTOCAST = {"transformer, bfloat16", "transformer, GradScaler"}


def in_order(events):
    """Events whose neighbouring frees are in the order of addresses.

    Autocast's cache of casts frees them in the order of a hash of addresses of the host.
    """
    ordered = []
    for action, group in groupby(events, key=lambda event: event[0]):
        alike = list(group)
        ordered += sorted(alike) if action == "free_requested" else alike
    return ordered


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Program -> "real" and "dry" -> peaks and events, of one process for all of them."""
    file = tmp_path_factory.mktemp("memory") / "measured.json"
    done = python(memory_programs.__file__, file, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_and_placements_are_those_of_the_real_run(name, measured):
    """Rule M13: what a real run's kernels take beside their results is no memory of the device."""
    peaks, events = measured[name]["real"]
    dry_peaks, dry_events = measured[name]["dry"]
    assert dry_peaks == peaks
    assert len(dry_events) > 20
    if name in AUTOCAST:
        dry_events, events = in_order(dry_events), in_order(events)
    assert dry_events == events


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.huber_loss, F.binary_cross_entropy]
)
def test_losses_keep_the_storage_that_torch_gives_them(loss, reduction):
    """Some reduced losses keep the bytes of the unreduced one, on CUDA too."""
    given = torch.linspace(0.1, 0.9, 12).view(3, 4)

    def answer(device):
        result = loss(given.to(device), given.flip(0).to(device), reduction=reduction)
        return result.shape, result.stride(), result.untyped_storage().nbytes()

    with dry_run():
        dry = answer("npusim")
    assert dry == answer("npusim") == answer("cpu")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("turned", ["input", "gradient", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norms_of_turned_operands_lie_alike(dtype, turned, training):
    aten = torch.ops.aten

    def operand(is_turned):
        x = torch.ones((2, 4, 3) if is_turned else (2, 3, 4), device="npusim").to(dtype)
        return x.transpose(1, 2) if is_turned else x

    def answer():
        x, gradient = operand(turned != "gradient"), operand(turned != "input")
        channels = torch.ones(3, device="npusim")
        made = [
            aten.native_batch_norm(x, *[channels] * 4, training, 0.1, 1e-5)[0],
            aten._native_batch_norm_legit(x, *[channels] * 4, training, 0.1, 1e-5)[0],
            aten.native_batch_norm_backward(
                gradient, x, *[channels] * 5, training, 1e-5, [True] * 3
            )[0],
        ]
        return [(t.shape, t.stride(), t.dtype) for t in made]

    with dry_run():
        dry = answer()
    assert dry == answer()
