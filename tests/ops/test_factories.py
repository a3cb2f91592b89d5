# SPDX-License-Identifier: BSD-3-Clause
"""Factories give the values of the CPU, and shape and dtype where they draw."""

import pytest
import torch

DEVICE = "npusim"

FACTORIES = {
    "arange": lambda d: torch.arange(5, device=d),
    "arange.start": lambda d: torch.arange(2, 5, device=d),
    "arange.start_step": lambda d: torch.arange(2.0, 5.0, 0.5, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(7, device=d),
    "bartlett_window.periodic": lambda d: torch.bartlett_window(7, False, device=d),
    "blackman_window": lambda d: torch.blackman_window(7, device=d),
    "blackman_window.periodic": lambda d: torch.blackman_window(7, False, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "eye.m": lambda d: torch.eye(3, 4, device=d),
    "fft_fftfreq": lambda d: torch.fft.fftfreq(7, 0.5, device=d),
    "fft_rfftfreq": lambda d: torch.fft.rfftfreq(7, 0.5, device=d),
    "full": lambda d: torch.full((2, 3), 1.5, device=d),
    "hamming_window": lambda d: torch.hamming_window(7, device=d),
    "hamming_window.periodic": lambda d: torch.hamming_window(7, False, device=d),
    "hamming_window.periodic_alpha": lambda d: torch.hamming_window(7, False, 0.5, device=d),
    "hamming_window.periodic_alpha_beta": lambda d: torch.hamming_window(
        7, False, 0.5, 0.4, device=d
    ),
    "hann_window": lambda d: torch.hann_window(7, device=d),
    "hann_window.periodic": lambda d: torch.hann_window(7, False, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(7, device=d),
    "kaiser_window.beta": lambda d: torch.kaiser_window(7, False, 8.0, device=d),
    "kaiser_window.periodic": lambda d: torch.kaiser_window(7, False, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 7, device=d),
    "ones": lambda d: torch.ones(2, 3, device=d),
    "range": lambda d: torch.range(0, 5, device=d),
    "range.step": lambda d: torch.range(0, 5, 2, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.5, device=d),
    "sparse_coo_tensor.size": lambda d: torch.sparse_coo_tensor((2, 3), device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 4, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 4, device=d),
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "_efficientzerotensor": lambda d: torch._efficientzerotensor((2, 3), device=d),
}
DRAWN = {  # values are the device's own (rule R1), or nobody's
    "empty.memory_format": lambda d: torch.empty(2, 3, device=d),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3), (1, 0), device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
    "normal.float_float": lambda d: torch.normal(0.0, 1.0, (2, 3), device=d),
    "rand": lambda d: torch.rand(2, 3, device=d),
    "rand.generator": lambda d: torch.rand(2, 3, device=d, generator=torch.Generator(d)),
    "randint": lambda d: torch.randint(9, (2, 3), device=d),
    "randint.generator": lambda d: torch.randint(9, (2, 3), device=d, generator=torch.Generator(d)),
    "randint.low": lambda d: torch.randint(2, 9, (2, 3), device=d),
    "randint.low_generator": lambda d: torch.randint(
        2, 9, (2, 3), device=d, generator=torch.Generator(d)
    ),
    "randn": lambda d: torch.randn(2, 3, device=d),
    "randn.generator": lambda d: torch.randn(2, 3, device=d, generator=torch.Generator(d)),
    "randperm": lambda d: torch.randperm(7, device=d),
    "randperm.generator": lambda d: torch.randperm(7, device=d, generator=torch.Generator(d)),
}
ELSEWHERE = {  # asked by tests of its own, or nothing that a program calls
    "Generator", "_cudnn_init_dropout_state", "_empty_affine_quantized", "_make_dep_token",
    "_sparse_compressed_tensor_with_dims", "_sparse_coo_tensor_with_dims", "from_file",
}  # fmt: skip
TORCHSCRIPT = ("as_tensor.", "tensor")  # overloads for compiled Python numbers


def test_every_factory_of_torch_is_in_a_table():
    schemas = {
        f"{schema.name.removeprefix('aten::')}.{schema.overload_name}".rstrip(".")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        and any(argument.name == "device" for argument in schema.arguments)
        and not any("Tensor" in str(argument.type) for argument in schema.arguments)
    }
    names = {name for name in schemas if not name.startswith(TORCHSCRIPT)}
    assert names == FACTORIES.keys() | DRAWN.keys() | ELSEWHERE


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("name", FACTORIES)
def test_factories_give_the_values_of_the_cpu(name):
    made, expected = FACTORIES[name](DEVICE), FACTORIES[name]("cpu")
    assert made.device.type == DEVICE
    torch.testing.assert_close(made.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_factories_have_the_shape_and_dtype_of_the_cpu(name):
    made, expected = DRAWN[name](DEVICE), DRAWN[name]("cpu")
    assert made.device.type == DEVICE
    assert (made.shape, made.stride(), made.dtype) == (
        expected.shape, expected.stride(), expected.dtype,
    )  # fmt: skip
