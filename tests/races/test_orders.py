# SPDX-License-Identifier: BSD-3-Clause
"""Published races and their mended twins: each is reported where the slow reference says so.

Random programs beside the same reference are tests/search/streams.py.
"""

import pytest
import torch
from races import reference

from claims.lists.races import PROGRAMS as PATTERNS
from torch_npusim.sim import races


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_real_ones_are_reported_where_the_reference_says_so(pattern, mended):  # (rules V4-V7)
    with reference.record() as log, races.record() as recorded:
        pattern.run(mended)
        torch.npusim.synchronize(0)
        torch.npusim.synchronize(1)
    true = reference.Reference().read(log).races
    reference.agree(recorded.races, true)
    assert bool(true) != mended
