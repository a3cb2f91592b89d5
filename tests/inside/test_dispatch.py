# SPDX-License-Identifier: BSD-3-Clause
"""inside.dispatch(): its hops are those that ran, its text fits, its facts are the device's.

`make sweeps` compares derived and seen hops of every operator of op_db.
"""

import pytest
import torch
from inside.wrapped_kernels import KEYS, seen
from ops.swept import ALL, on_device, over_operators, samples_of

from torch_npusim import inside

# Operators whose chain is not compared, with the reason.
_LAZY = (
    "the fallback of Conjugate clones its operand between two hops, and a report lists hops first"
)
EXCEPTIONS = dict.fromkeys(("fft_hfft", "fft_hfft2", "fft_hfftn"), _LAZY)
EXCEPTIONS["max_pool2d_with_indices_backward"] = "a dilated one looks at its indices first"


def compared(function, arguments):
    """Returns (derived, seen) hops of two runs of a function; `arguments` makes its arguments."""
    torch.manual_seed(0)
    args, kwargs = arguments()
    report = inside.dispatch(function, *args, **kwargs)
    if report.error is not None:
        return None
    derived = [
        (call.name, hop.key)
        for call in report.walk()
        for hop in call.hops
        if call.name.startswith("aten::") and hop.key in KEYS
    ]
    torch.manual_seed(0)
    args, kwargs = arguments()
    with seen(call.name for call in report.walk()) as found:
        function(*args, **kwargs)
    if derived != found:
        # A number in the place of a tensor is no longer marked as one behind a kernel in front, and
        # kernels treat it as a tensor from there on.
        derived, found = (before(hops, found.numbers) for hops in (derived, list(found)))
    return derived, found


def before(hops, names):
    """Returns the hops before the first one of the operators `names` ends."""
    first = next((i for i, (name, _) in enumerate(hops) if name in names), len(hops))
    return hops[: first + 1]


@pytest.fixture
def _one_thread():
    """A kernel in Python wants the GIL, which the caller of a parallel loop holds."""
    torch.set_num_threads(1)


@over_operators
@pytest.mark.usefixtures("_one_thread")
def test_derived_hops_are_those_that_run(op):
    if op.formatted_name in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[op.formatted_name])
    for sample in list(samples_of(op))[: 5 if ALL else 2]:

        def arguments(sample=sample):
            x, args, kwargs = on_device(sample)
            return (x, *args), kwargs

        if (both := compared(op, arguments)) is not None:
            derived, found = both
            assert derived == found
