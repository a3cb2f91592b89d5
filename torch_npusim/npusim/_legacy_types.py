# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.FloatTensor, FloatStorage and their like: names for (device, dtype) of older code.

Instances are ordinary tensors and typed storages: the classes construct them and answer
isinstance().
"""

import types
import warnings
from typing import Any, NoReturn

import torch
from torch._utils import classproperty
from torch.storage import _LegacyStorage, _warn_typed_storage_removal

from torch_npusim._names import device_type, is_npusim

MODULE = "torch.npusim"


_warned_of = set[str]()


def _warn_of_cuda_types() -> None:
    """Warns once, as CUDA's types do."""
    if "cuda" in _warned_of and not torch.is_warn_always_enabled():
        return
    _warned_of.add("cuda")
    warnings.warn(
        "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use "
        "methods such as torch.tensor(data, dtype=*, device='cuda') to create tensors.",
        stacklevel=3,
    )


def own_device(device: Any) -> torch.device:
    """Returns the device for a constructor of these types; raises as core's do for another kind."""
    if device is None:
        return torch.device("npusim")
    own = torch.device("npusim", device) if isinstance(device, int) else torch.device(device)
    if not is_npusim(own):
        raise RuntimeError(
            f"legacy constructor expects device type: {device_type()} but device type: "
            f"{own.type} was passed"
        )
    return own


class TensorType(type):
    """The type of the tensor classes below."""

    dtype: torch.dtype

    # Tensor.type(class) reads the C name of the class, which for those of torch holds the module.
    # So does it here; Python's name is without, as there.
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return super().__name__.rpartition(".")[2]

    def __repr__(cls) -> str:
        return f"<class '{MODULE}.{cls.__name__}'>"

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and is_npusim(instance.device)
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Constructs a tensor: from sizes (uninitialised) or from one sequence of values."""
        if device_type() == "cuda":
            _warn_of_cuda_types()
        device = own_device(kwargs.pop("device", None))
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device, **kwargs)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(sizes or (0,), dtype=cls.dtype, device=device, **kwargs)


def _refuse(name: str) -> NoReturn:
    device = "CUDA" if device_type() == "cuda" else "npusim"
    raise RuntimeError(f"{name}: Not available for {device} storage")


class _StorageBase(_LegacyStorage):
    """The common part of the storage classes. It refuses, as torch.cuda's, memory of the host."""

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises RuntimeError."""
        _refuse("from_buffer")

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("_new_with_weak_ptr")

    @classmethod
    def _new_shared_filename(cls, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("_new_shared_filename")


def _tensor(name: str, dtype: torch.dtype) -> TensorType:
    doc = f"A tensor of {dtype} on npusim; prefer torch.tensor(..., dtype=..., device=...)."
    return TensorType(
        f"{MODULE}.{name}", (), {"dtype": dtype, "__module__": MODULE, "__doc__": doc}
    )


def _storage(name: str, dtype: torch.dtype) -> type[_LegacyStorage]:
    def warned(cls: Any) -> torch.dtype:
        _warn_typed_storage_removal(stacklevel=3)  # type: ignore[no-untyped-call]
        return dtype

    members = {
        "__module__": MODULE,  # says which device it is of, to torch.storage
        "__doc__": f"A storage of {dtype} on npusim; prefer torch.UntypedStorage(..., device=...).",
        "_dtype": dtype,
        "dtype": classproperty(warned),  # type: ignore[no-untyped-call]
    }
    storage = types.new_class(name, (_StorageBase,), exec_body=lambda body: body.update(members))
    torch._storage_classes.add(storage)
    return storage


DoubleTensor = _tensor("DoubleTensor", torch.float64)
FloatTensor = _tensor("FloatTensor", torch.float32)
HalfTensor = _tensor("HalfTensor", torch.float16)
BFloat16Tensor = _tensor("BFloat16Tensor", torch.bfloat16)
LongTensor = _tensor("LongTensor", torch.int64)
IntTensor = _tensor("IntTensor", torch.int32)
ShortTensor = _tensor("ShortTensor", torch.int16)
CharTensor = _tensor("CharTensor", torch.int8)
ByteTensor = _tensor("ByteTensor", torch.uint8)
BoolTensor = _tensor("BoolTensor", torch.bool)

DoubleStorage = _storage("DoubleStorage", torch.float64)
FloatStorage = _storage("FloatStorage", torch.float32)
HalfStorage = _storage("HalfStorage", torch.float16)
BFloat16Storage = _storage("BFloat16Storage", torch.bfloat16)
ComplexDoubleStorage = _storage("ComplexDoubleStorage", torch.complex128)
ComplexFloatStorage = _storage("ComplexFloatStorage", torch.complex64)
LongStorage = _storage("LongStorage", torch.int64)
IntStorage = _storage("IntStorage", torch.int32)
ShortStorage = _storage("ShortStorage", torch.int16)
CharStorage = _storage("CharStorage", torch.int8)
ByteStorage = _storage("ByteStorage", torch.uint8)
BoolStorage = _storage("BoolStorage", torch.bool)
