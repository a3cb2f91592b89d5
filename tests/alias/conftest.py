# SPDX-License-Identifier: BSD-3-Clause
"""Within a test of this folder "cuda" means npusim."""

import pytest

from torch_npusim import cuda_alias


@pytest.fixture(autouse=True)
def _alias():
    with cuda_alias.scope():
        yield
