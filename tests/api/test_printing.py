# SPDX-License-Identifier: BSD-3-Clause
"""How device tensors print: as on CPU, with the device."""

import pytest
import torch

TENSORS = {
    "float": torch.arange(6.0).reshape(2, 3) / 3,
    "integer": torch.arange(3),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0),
    "large": torch.arange(2000.0),
    "half": torch.ones(2, dtype=torch.float16),
    "infinite": torch.tensor([float("inf"), float("nan"), 1.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_repr_is_that_of_cpu_with_the_device(name):
    on_cpu = TENSORS[name]
    text = repr(on_cpu.to("npusim:1"))
    assert "device='npusim:1'" in text
    plain = text.replace("device='npusim:1', ", "").replace(", device='npusim:1'", "")
    plain = plain.replace("device='npusim:1'", "")
    assert "".join(plain.split()) == "".join(repr(on_cpu).split())


def test_str_and_format():
    assert str(torch.tensor([1.0, 2.0], device="npusim")) == "tensor([1., 2.], device='npusim:0')"
    assert f"{torch.tensor(2.5, device='npusim'):.2f}" == "2.50"


def test_gradients_are_shown():
    x = torch.ones(1, device="npusim", requires_grad=True)
    assert repr(x) == "tensor([1.], device='npusim:0', requires_grad=True)"
    assert repr(x * 2) == "tensor([2.], device='npusim:0', grad_fn=<MulBackward0>)"


def test_parameters_and_generators():
    assert repr(torch.nn.Parameter(torch.ones(1, device="npusim"))) == (
        "Parameter containing:\ntensor([1.], device='npusim:0', requires_grad=True)"
    )
    assert "npusim" in repr(torch.Generator("npusim").device)
