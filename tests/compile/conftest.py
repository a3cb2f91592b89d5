# SPDX-License-Identifier: BSD-3-Clause
"""Each test compiles anew; only what g++ made of a source is kept, in build/inductor."""

import os

import pytest
import torch
from repo.sources import ROOT


@pytest.fixture(scope="session", autouse=True)
def _kept_libraries():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build" / "inductor")


@pytest.fixture(autouse=True)
def _compiles_anew():
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build" / "inductor")
    torch._dynamo.reset()
    with config.patch(compile_threads=1, fx_graph_cache=False, force_disable_caches=False):
        with torch._functorch.config.patch(enable_autograd_cache=False):
            yield
    torch._dynamo.reset()
