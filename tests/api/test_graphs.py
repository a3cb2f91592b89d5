# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.graphs: there are none, and they do not pretend."""

import pytest
import torch


def test_nothing_is_being_captured():
    assert torch.npusim.is_current_stream_capturing() is False


@pytest.mark.parametrize("name", ["graph", "graph_pool_handle", "make_graphed_callables"])
def test_graph_functions_name_themselves_and_the_remedy(name):
    with pytest.raises(NotImplementedError, match=f"torch.npusim.{name}: .*call the function"):
        getattr(torch.npusim, name)()
