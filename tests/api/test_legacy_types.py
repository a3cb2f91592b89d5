# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.FloatTensor, FloatStorage and their like."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:torch.set_default_tensor_type:UserWarning",
)

TYPES = {
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_type_string_converts_and_is_what_type_returns(name, dtype):
    tensor = torch.ones(2).type(f"torch.npusim.{name}")
    assert tensor.device.type == "npusim"
    assert tensor.dtype == dtype
    assert tensor.type() == f"torch.npusim.{name}"
    assert isinstance(tensor, getattr(torch.npusim, name))
    assert not isinstance(tensor.cpu(), getattr(torch.npusim, name))


def test_types_construct_from_sizes_and_from_values():
    assert torch.npusim.FloatTensor(2, 3).shape == (2, 3)
    assert torch.npusim.FloatTensor(torch.Size([4])).shape == (4,)
    assert torch.npusim.FloatTensor().shape == (0,)
    values = torch.npusim.LongTensor([1, 2])
    assert values.tolist() == [1, 2]
    assert values.dtype == torch.int64


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_a_type_converts_and_reads_as_torch_has_them(name, dtype):
    kind = getattr(torch.npusim, name)
    converted = torch.ones(2).type(kind)
    assert (converted.device.type, converted.dtype) == ("npusim", dtype)
    assert converted.type(kind) is converted
    assert (kind.__name__, kind.__module__) == (name, "torch.npusim")
    assert str(kind) == f"<class 'torch.npusim.{name}'>"


STORAGES = {
    **{name.replace("Tensor", "Storage"): dtype for name, dtype in TYPES.items()},
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


def test_there_are_the_storages_of_cuda():
    assert {name for name in torch.cuda.__all__ if name.endswith("Storage")} == set(STORAGES)


@pytest.mark.parametrize(("name", "dtype"), STORAGES.items())
def test_typed_storage(name, dtype):
    kind = getattr(torch.npusim, name)
    assert kind.dtype == dtype
    storage = torch.ones(2, dtype=dtype, device="npusim").storage()
    assert storage.type() == f"torch.npusim.{name}"
    assert isinstance(storage, kind)
    assert not isinstance(storage.cpu(), kind)
    made = kind([1, 0, 1])
    assert (made.device.type, made.dtype, made.tolist()) == ("npusim", dtype, [1, 0, 1])
    assert torch.is_storage(made)
    assert kind(4).nbytes() == 4 * dtype.itemsize
    wrapped = kind(wrap_storage=storage.untyped())
    assert wrapped.data_ptr() == storage.data_ptr()


def test_typed_storage_refuses_memory_of_the_host():
    with pytest.raises(RuntimeError, match="must be npusim, but got cpu"):
        torch.npusim.FloatStorage(wrap_storage=torch.ones(2).untyped_storage())
    with pytest.raises(RuntimeError, match="Not available for npusim storage"):
        torch.npusim.FloatStorage.from_buffer(b"1234", "native")


@pytest.fixture
def restored_defaults():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_tensor_type(torch.FloatTensor)
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


@pytest.mark.parametrize("chosen", ["torch.npusim.DoubleTensor", torch.npusim.DoubleTensor])
def test_default_tensor_type(chosen, restored_defaults):
    torch.set_default_tensor_type(chosen)
    made = torch.tensor([1.5])
    assert (made.device.type, made.dtype) == ("npusim", torch.float64)
    torch.set_default_tensor_type(torch.FloatTensor)
    made = torch.tensor([1.5])
    assert (made.device.type, made.dtype) == ("cpu", torch.float32)


def test_default_tensor_type_keeps_a_default_device_of_others(restored_defaults):
    torch.set_default_device("npusim:1")
    torch.set_default_tensor_type(torch.DoubleTensor)
    assert torch.ones(1).device == torch.device("npusim:1")


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        (torch.npusim.LongTensor, TypeError, "only floating-point types"),
        ("torch.npusim.NoTensor", AttributeError, "no attribute 'NoTensor'"),
    ],
)
def test_default_tensor_type_refuses_others(chosen, error, words, restored_defaults):
    with pytest.raises(error, match=words):
        torch.set_default_tensor_type(chosen)
    assert torch.ones(1).device.type == "cpu"
