# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions on matrix units convert images that are not channels_last; advice about it."""

import contextlib

import pytest
import torch
from torch import nn

from torch_npusim.profiling import diagnose, record
from torch_npusim.sim import dry_run, timeline

IMAGES = (16, 64, 56, 56)  # npusim-one has matrix units for float16


def convolved(layout, dtype=torch.float16, context=contextlib.nullcontext):
    with context(), torch.device("npusim"), torch.no_grad():
        model = nn.Conv2d(64, 128, 3, padding=1, bias=False, dtype=dtype)
        model = model.to(memory_format=layout)
        images = torch.empty(IMAGES, dtype=dtype).to(memory_format=layout)
        torch.npusim.synchronize()
        with record() as made:
            for _ in range(4):
                model(images)
    return made


def bytes_of(made):
    return {row.bytes for row in made.timeline.commands()}


def test_images_are_converted_there_and_back_unless_they_are_channels_last():
    ((plain,), (last,)) = (
        bytes_of(convolved(layout, context=dry_run))
        for layout in (torch.contiguous_format, torch.channels_last)
    )
    elements = 16 * 56 * 56 * (64 + 128)
    assert last == 2 * (elements + 128 * 64 * 9)
    assert plain - last == 3 * 2 * elements  # read, and written out of order
    (single,) = bytes_of(convolved(torch.contiguous_format, torch.float32, dry_run))
    assert single == 2 * last  # no matrix units, nothing to convert


def test_the_advice_gains_what_it_says():
    before = diagnose(convolved(torch.contiguous_format))
    after = diagnose(convolved(torch.channels_last))
    (advice,) = (advice for advice in before.advice if advice.cause == "layout")
    assert "channels_last" in advice.remedy
    assert 1 - after.span_ns / before.span_ns == pytest.approx(advice.gain, rel=0.2)
    assert "layout" not in {advice.cause for advice in after.advice}


def test_a_larger_batch_is_advised_where_commands_are_small():
    def trained(batch):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to("npusim")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.ones(batch, 64, device="npusim")
        with record() as made:
            for _ in range(4):
                model(x).sum().backward()
                optimizer.step()
        return diagnose(made)

    small, doubled = trained(16), trained(32)
    (advice,) = (advice for advice in small.advice if advice.cause == "batch")
    gained = 1 - doubled.span_ns / small.span_ns / 2
    assert gained == pytest.approx(advice.gain, rel=0.2)
    assert timeline.Rates.of_spec("npusim-one") == timeline.Rates.of_device()
