# SPDX-License-Identifier: BSD-3-Clause
"""No false accusation: forward and backward passes of operators have no race, on a stream of their
own either. `make sweeps`: of every operator."""

import pytest
import torch
from ops.swept import over_operators, samples_of, tensors_of
from torch.utils._pytree import tree_map

from torch_npusim.sim.races import RaceError


@pytest.fixture
def _races_are_errors():
    before = torch.npusim.get_race_detection()
    torch.npusim.set_race_detection("error")
    yield
    torch.npusim.set_race_detection(before)


def there(value):
    if not isinstance(value, torch.Tensor):
        return torch.device("cuda") if isinstance(value, torch.device) else value
    return value.detach().to("cuda").requires_grad_(value.requires_grad)


@over_operators
@pytest.mark.usefixtures("_races_are_errors")
@pytest.mark.filterwarnings("ignore")
def test_a_step_has_no_race(op):
    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for number, sample in enumerate(samples_of(op, requires_grad=op.supports_autograd)):
        stream = (default, side)[number % 2]
        x, args, named = tree_map(there, (sample.input, sample.args, sample.kwargs))
        side.wait_stream(default)
        with torch.cuda.stream(stream):
            try:
                results = tensors_of(op(x, *args, **named))
                parts = [result.abs().sum() for result in results if result.requires_grad]
                torch.autograd.backward(parts)
            except RaceError:
                raise
            except Exception:  # npusim or CUDA's rules refuse it
                continue
        default.wait_stream(side)
        if number == 7:
            break
