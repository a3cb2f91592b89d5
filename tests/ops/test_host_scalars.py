# SPDX-License-Identifier: BSD-3-Clause
"""0-dim tensors of the host beside device tensors: accepted where CUDA accepts them (rule O2).

CUDA's rule has three parts, each with its source:

1. `device_check` in native_functions.yaml, which comes with torch (torchgen). Without
   `device_check: NoCheck` the generated CUDA kernel refuses every operand of another device.
2. The operator's iterator: `allow_cpu_scalars(true)` lets one 0-dim host tensor pass. torch's own
   structured classes are asked, with npusim tensors: their set-up is the same on every device.
3. The loop: most take a host scalar in any place (`gpu_kernel_with_scalars` and its kin), some in
   none or in the last one only. `LOOPS` names these with the file in aten/src/ATen/native/cuda.
"""

import functools
import itertools
from pathlib import Path

import pytest
import torch
import torchgen
import yaml
from torchgen.gen import parse_native_yaml
from torchgen.model import NativeFunction

DEVICE = "npusim"
FOLDER = Path(torchgen.__file__).parent / "packaged/ATen/native"

# Places that the loop takes; the others it refuses with an error of its own.
LOOPS = {
    "addcmul": {2},  # PointwiseOpsKernel.cu: "CPU Scalar support for tensor2 is supported"
    "addcmul_": {2},
    "lerp.Tensor": {2},  # Lerp.cu: is_cpu_scalar(3), else gpu_kernel()
    "lerp_.Tensor": {2},
    "lerp.Scalar": set(),  # Lerp.cu: gpu_kernel()
    "lerp_.Scalar": set(),
    "mse_loss": set(),  # BinaryMiscOpsKernels.cu: gpu_kernel()
    "smooth_l1_loss": set(),
}

# Operators without a structured class, by what the CUDA function does with a host scalar.
UNSTRUCTURED = {
    **dict.fromkeys(  # a binary iterator, BinaryOps.cpp
        [
            *("floor_divide", "floor_divide_.Tensor", "rsub.Tensor", "logical_and", "logical_and_"),
            *("logical_or", "logical_or_", "logical_xor", "logical_xor_", "true_divide.Tensor"),
            *("true_divide_.Tensor", "__lshift__.Tensor", "__ilshift__.Tensor"),
            *("__rshift__.Tensor", "__irshift__.Tensor", "__and__.Tensor", "__iand__.Tensor"),
            *("__or__.Tensor", "__ior__.Tensor", "__xor__.Tensor", "__ixor__.Tensor"),
            *("max.other", "min.other", "special_xlogy"),
        ],
        True,
    ),
    "equal": False,  # checked
}


@functools.cache
def native_functions() -> list[NativeFunction]:
    parsed = parse_native_yaml(str(FOLDER / "native_functions.yaml"), str(FOLDER / "tags.yaml"))
    return parsed.native_functions


def overload(name: str) -> torch._ops.OpOverload:
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


def tensors_of(operator: torch._ops.OpOverload) -> list[torch.Argument]:
    return [argument for argument in operator._schema.arguments if str(argument.type) == "Tensor"]


def places_of(operator: torch._ops.OpOverload) -> list[int]:
    """The numbers, among the operator's tensors, of those that are only read."""
    tensors = enumerate(tensors_of(operator))
    return [i for i, argument in tensors if not (argument.alias_info or argument.is_out)]


def arguments(operator, host: tuple[int, ...], dtype: torch.dtype, device: str = DEVICE) -> list:
    """Tensors of three elements, and 0-dim tensors of the host in the places `host`."""
    made, number = [], 0
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor":
            made.append(
                torch.full((), 2, dtype=dtype)
                if number in host
                else torch.tensor([1, 2, 3], device=device).to(dtype)
            )
            number += 1
        elif argument.has_default_value() or argument.kwarg_only:
            break
        else:
            made.append({"number": 1, "int": 1, "float": 1.0, "bool": False}[kind])
    return made


def run(operator, *args):
    rounding = {"rounding_mode": "floor"} if operator._overloadname == "Tensor_mode" else {}
    return operator(*args, **rounding)


def dtype_of(operator) -> torch.dtype:
    """The first dtype for which the operator has a CPU kernel."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        try:
            run(operator, *arguments(operator, (), dtype, "cpu"))
        except (RuntimeError, TypeError):
            continue
        return dtype
    raise AssertionError(f"{operator}: none of the dtypes")


def iterator_takes(operator, host: tuple[int, ...]) -> bool:
    """Asks the structured class, which a backend without a kernel of its own gets."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.VE)
    try:
        redispatch = functools.partial(operator.redispatch, keys)
        redispatch._overloadname = operator._overloadname
        run(redispatch, *arguments(operator, host, dtype_of(operator)))
    except RuntimeError as error:
        # npusim's own check comes after the class's set-up, and says more.
        return "when checking the arguments of" in str(error)
    return True


def npusim_takes(operator, host: tuple[int, ...]) -> bool:
    dtype = dtype_of(operator)
    try:
        got = run(operator, *arguments(operator, host, dtype))
    except RuntimeError as error:
        if "Expected all tensors to be on the same device" not in str(error):
            raise
        return False
    expected = run(operator, *arguments(operator, host, dtype, "cpu"))
    if isinstance(expected, torch.Tensor):
        assert got.is_npusim
        assert torch.equal(got.cpu(), expected)
    return True


def structured_pointwise() -> dict[str, bool]:
    """Functional and in-place overloads of two tensors or more that loop over their elements.

    The value says whether CUDA's kernel leaves the check of devices out.
    """
    rows = yaml.load((FOLDER / "native_functions.yaml").read_bytes(), yaml.CSafeLoader)
    structured = {
        row["func"].partition("(")[0]: row.get("device_check") == "NoCheck"
        for row in rows
        if "structured_delegate" in row
    }
    return {
        name: unchecked
        for name, unchecked in structured.items()
        if len(tensors_of(overload(name))) > 1
        if unchecked or torch.Tag.pointwise in overload(name).tags
    }


STRUCTURED = structured_pointwise()


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_operators_take_what_cuda_takes(name):
    operator = overload(name)
    places = places_of(operator)
    for count in range(1, len(tensors_of(operator))):
        for host in itertools.combinations(places, count):
            cuda = (
                STRUCTURED[name]
                and set(host) <= LOOPS.get(name, set(places))
                and iterator_takes(operator, host)
            )
            assert npusim_takes(operator, host) == cuda, host


@pytest.mark.parametrize("name", UNSTRUCTURED)
def test_other_operators_take_what_cuda_takes(name):
    for place in places_of(overload(name)):
        assert npusim_takes(overload(name), (place,)) == UNSTRUCTURED[name]


def test_the_table_is_complete():
    """Pointwise operators of two tensors that are neither structured nor made of others."""
    for function in native_functions():
        name = str(function.func.name)
        operator = getattr(torch.ops.aten, str(function.func.name.name), None)
        tensors = [a for a in function.func.arguments.flat_non_out if str(a.type) == "Tensor"]
        if operator is None or len(tensors) < 2 or function.func.arguments.out:
            continue
        if (
            function.structured
            or name in STRUCTURED
            or function.has_composite_implicit_autograd_kernel
            or function.has_composite_explicit_autograd_kernel
        ):
            continue
        if torch.Tag.pointwise in overload(name).tags and name not in UNSTRUCTURED:
            assert name in {"where.self", "native_dropout_backward"}, name


def scalar(value=2.0):
    return torch.tensor(value)


def test_at_most_one_host_tensor():
    x = torch.ones(3, device=DEVICE)
    for call in (
        lambda: torch.add(scalar(), scalar(), out=x),
        lambda: torch.addcmul(x, scalar(), scalar()),
        lambda: torch.lerp(scalar(), scalar(), x),
        lambda: torch.mul(scalar(), scalar(), out=x),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    assert torch.where(x > 0, scalar(), scalar(3.0)).tolist() == [2, 2, 2]  # made for numbers


def test_out_takes_what_the_functional_form_takes():
    x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    out = torch.empty(3, device=DEVICE)
    assert torch.floor_divide(x, scalar(), out=out).tolist() == [0, 1, 1]
    assert torch.addcmul(x, x, scalar(), out=out).tolist() == [3, 6, 9]
    assert torch.lerp(x, x + 1, scalar(0.5), out=out).tolist() == [1.5, 2.5, 3.5]
    for call in (
        lambda: torch.addcmul(x, scalar(), x, out=out),
        lambda: torch.addcdiv(x, x, scalar(), out=out),
        lambda: torch.clamp_max(x, scalar(), out=out),
        lambda: torch.gcd(x.int(), scalar(2), out=out.int()),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()


def test_operators_of_python():
    x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    assert (x // scalar()).tolist() == [0, 1, 1]
    assert (scalar(7.0) // x).tolist() == [7, 3, 2]
    assert torch.rsub(x, scalar(3.0)).tolist() == [2, 1, 0]
    assert x.clone().eq_(scalar()).tolist() == [0, 1, 0]
    assert x.clone().floor_divide_(scalar()).tolist() == [0, 1, 1]
