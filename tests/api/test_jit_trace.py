# SPDX-License-Identifier: BSD-3-Clause
"""torch.jit.trace writes down the operators that were called, not what they do on the host."""

import pytest
import torch
from torch import nn

LAYERS = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(3, 4, 2), (1, 3, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "Conv2d(groups=3)": (lambda: nn.Conv2d(3, 6, 3, groups=3, bias=False), (2, 3, 8, 8)),
    "Linear": (lambda: nn.Linear(8, 4), (2, 8)),
    "LSTM": (lambda: nn.LSTM(8, 4), (3, 2, 8)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3).eval(), (2, 3, 4, 4)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_traced_layer_is_the_layer(layer):
    make, shape = LAYERS[layer]
    model = make().npusim()
    traced = torch.jit.trace(model, torch.randn(shape).npusim())
    other = torch.randn(shape).npusim()
    torch.testing.assert_close(traced(other), model(other))
    on_cpu = torch.jit.trace(model.cpu(), torch.randn(shape))
    assert operators(traced) == operators(on_cpu)


def operators(traced):
    return [node.kind() for node in traced.graph.nodes() if node.kind().startswith("aten::")]
