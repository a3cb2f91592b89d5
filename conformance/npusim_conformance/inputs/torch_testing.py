# SPDX-License-Identifier: BSD-3-Clause
"""The one file that touches torch's private testing modules.

Everything here is used as data: no unittest class of torch is instantiated. Checked on the versions
in CHECKED; another torch gets a warning that says so, and a missing name an error that names it.
"""

import importlib
import os
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

os.environ.setdefault("PYTORCH_TEST_WITH_SLOW", "0")

import numpy
import torch

CHECKED = ("2.13", "2.14", "2.15")
SUPPORTED = ("2.11", "2.12", *CHECKED)

Operator = Any  # torch.testing._internal.opinfo.core.OpInfo
Sample = Any  # torch.testing._internal.opinfo.core.SampleInput

# Compile CUDA source at run time; no other backend can have them.
CUDA_SOURCE = ("jiterator_",)
# Operators that draw random numbers: their values are the generator's, not the CPU's.
RANDOM = frozenset(
    """bernoulli cauchy exponential geometric log_normal multinomial normal normal.in_place
    normal.number_mean rand_like randint randint_like randn randn_like uniform
    nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu
    pca_lowrank svd_lowrank""".split()
)
# Draw random numbers for some samples only: (position among args, name) of the probability.
RANDOM_IF_DROPOUT = {
    "nn.functional.scaled_dot_product_attention": (4, "dropout_p"),
    "nn.functional.multi_head_attention_forward": (9, "dropout_p"),
}
# Operator -> position in args of a tensor that must stay on the CPU wherever the rest lies.
HOST_ARGUMENTS = {"tensor_split": 0}
# The slowest operators, so that they are started first and a run does not end waiting for one.
SLOW = (
    "grid_sampler_3d",
    "max_pool2d_with_indices_backward",
    "nn.functional.max_pool2d",
    "nn.functional.max_pool3d",
    "nn.functional.max_pool1d",
    "masked.norm",
    "logspace.tensor_overload",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.gaussian_nll_loss",
    "unique",
    "searchsorted",
    "linalg.lstsq",
    "nn.functional.interpolate.bicubic",
)


def version() -> str:
    """Major and minor version of the torch that is installed."""
    return ".".join(torch.__version__.split(".")[:2])


def version_warning() -> str:
    """A warning about this torch, or nothing if the kit was checked on it."""
    if version() in CHECKED:
        return ""
    if version() in SUPPORTED:
        return (
            f"torch {torch.__version__}: the kit was checked on {', '.join(CHECKED)} only; it is "
            "written for this version too, but has not been tested there."
        )
    return f"torch {torch.__version__} is outside the supported versions {SUPPORTED}."


def _missing(error: ImportError | AttributeError, what: str) -> RuntimeError:
    return RuntimeError(
        f"torch {torch.__version__} offers no {what} ({error}). The kit was checked on torch "
        f"{', '.join(CHECKED)}; please report this version."
    )


def _database(module: str, name: str, what: str) -> Any:
    """A database of torch.testing._internal. Raises RuntimeError where torch lacks it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(f"torch.testing._internal.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise _missing(error, what) from error


@cache
def operators() -> dict[str, Operator]:
    """The OpInfo database by full name: 702 entries in torch 2.13."""
    found = _database("common_methods_invocations", "op_db", "OpInfo database")
    torch.testing._utils.freeze_rng_state = _frozen_generators
    return {operator.full_name: operator for operator in found}


@contextmanager
def _frozen_generators() -> Iterator[None]:
    """Stands in for torch's freeze_rng_state(), which fails where a module has no generators.

    Many operators of the database seed themselves inside it, on the CPU as well.
    """
    current = torch.accelerator.current_accelerator()
    module: Any = getattr(torch, current.type, None) if current is not None else None
    with _without_modes():
        host = torch.get_rng_state()
        try:
            there = module.get_rng_state() if hasattr(module, "set_rng_state") else None
        except Exception:  # the contracts on random numbers say what is wrong with it
            there = None
    try:
        yield
    finally:
        with _without_modes():
            if there is not None:
                module.set_rng_state(there)
            torch.set_rng_state(host)


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch.utils._mode_utils.no_dispatch(), torch._C._DisableFuncTorch():
        yield


@cache
def modules() -> dict[str, Any]:
    """The ModuleInfo database by name, as "nn.Linear"."""
    found = _database("common_modules", "module_db", "ModuleInfo database")
    return {info.name: info for info in found}


@cache
def optimizers() -> dict[str, Any]:
    """The OptimizerInfo database by class name."""
    found = _database("common_optimizers", "optim_db", "OptimizerInfo database")
    return {info.optim_cls.__name__: info for info in found}


@cache
def foreach_operators() -> dict[str, Any]:
    """The databases of torch._foreach_* by name, as "add"."""
    names = _database("common_methods_invocations", "__dict__", "foreach databases")
    groups = ("unary", "binary", "pointwise", "reduce", "other")
    found = [info for group in groups for info in names.get(f"foreach_{group}_op_db", [])]
    return {info.name.removeprefix("_foreach_"): info for info in found}


@cache
def custom_operators() -> dict[str, Any]:
    """The OpInfo database of operators registered with torch.library, by name."""
    found = _database("custom_op_db", "custom_op_db", "database of custom operators")
    return {operator.full_name: operator for operator in found}


def opcheck(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], check: str) -> str:
    """The complaint of one check of torch.library.opcheck, or nothing."""
    try:
        from torch.testing._internal.optests.generate_tests import OpCheckError
    except ImportError as error:
        raise _missing(error, "OpCheckError") from error
    try:
        torch.library.opcheck(operator, args, kwargs, test_utils=check)
    except OpCheckError as error:
        return " ".join(str(error).split())
    return ""


def operator_dtypes(operator: Operator, backward: bool = False) -> list[torch.dtype]:
    """Dtypes that the CPU kernel supports, in a fixed order, whatever device is under test."""
    dtypes = operator.supported_backward_dtypes("cpu") if backward else operator.dtypes
    return sorted(dtypes, key=lambda dtype: DTYPE_ORDER.index(dtype))


DTYPE_ORDER: list[torch.dtype] = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    *(
        dtype
        for name in sorted(dir(torch))
        if name.startswith(("float8", "float4", "bcomplex"))
        if isinstance(dtype := getattr(torch, name), torch.dtype)
    ),
]


def dtype_name(dtype: torch.dtype) -> str:
    """The name without "torch."."""
    return str(dtype).removeprefix("torch.")


def default_dtype(operator: Operator, backward: bool = False) -> torch.dtype | None:
    """The dtype that stands for all others: float32 where there is one."""
    dtypes = operator_dtypes(operator, backward)
    return dtypes[0] if dtypes else None


def seed_host(seed: int) -> None:
    """Seeds every generator that a sample function may draw from, on the CPU only."""
    torch.default_generator.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def sample_inputs(
    operator: Operator, dtype: torch.dtype, requires_grad: bool, seed: int
) -> list[Sample]:
    """SampleInputs of one operator on the CPU; the same list for the same seed.

    Not OpInfo.sample_inputs(), which inspects the stack before each sample.
    """
    seed_host(seed)
    return list(operator.sample_inputs_func(operator, "cpu", dtype, requires_grad))


def module_inputs(info: Any, dtype: torch.dtype, training: bool, seed: int) -> list[Any]:
    """ModuleInputs of one module that have an input for forward(), with gradients, on the CPU."""
    seed_host(seed)
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    return [given for given in made if given.forward_input is not None]


def module_error_inputs(info: Any, dtype: torch.dtype, training: bool, seed: int) -> list[Any]:
    """ErrorModuleInputs of one module, on the CPU: what must be refused."""
    if info.module_error_inputs_func is None:
        return []
    seed_host(seed)
    return list(
        info.module_error_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
    )


def optimizer_configurations(info: Any, device: str) -> list[dict[str, Any]]:
    """Arguments that torch tests an optimizer with on this kind of device ("cpu", "cuda")."""
    return [given.kwargs for given in info.optim_inputs_func(device=device)]


def optimizer_errors(info: Any) -> list[Any]:
    """ErrorOptimizerInputs of one optimizer, with parameters on the CPU."""
    return list(info.optim_error_inputs_func(device="cpu", dtype=torch.float32))


def error_inputs(operator: Operator, device: str, seed: int) -> Iterator[Any]:
    """ErrorInputs made for `device`: calls that must raise, with exception type and pattern."""
    seed_host(seed)
    yield from operator.error_inputs_func(operator, device)


def draws_random(operator: str, sample: Sample) -> bool:
    """Whether the result depends on a generator.

    Known by name: the database wraps most of these so that the CPU's generator looks untouched.
    """
    if operator in RANDOM:
        return True
    position, name = RANDOM_IF_DROPOUT.get(operator, (0, ""))
    if not name:
        return False
    given = sample.kwargs.get(name, sample.args[position] if len(sample.args) > position else 0.0)
    return bool(given)


def is_normalisation(name: str) -> bool:
    """Whether an operator or module divides by the deviation of its input."""
    return re.search(r"(?i)(batch|layer|group|instance)_?norm", name) is not None


def shape_rule(operator: Operator) -> str:
    """ "unary" and "binary" for elementwise operators, "reduction", or empty: no common rule."""
    kinds = {
        "UnaryUfuncInfo": "unary",
        "BinaryUfuncInfo": "binary",
        "ReductionOpInfo": "reduction",
    }
    return kinds.get(type(operator).__name__, "")


def is_elementwise(operator: Operator) -> bool:
    """Whether a result's element depends on one element of each operand, and on no generator."""
    return shape_rule(operator) in ("unary", "binary") and operator.full_name not in RANDOM


def family(operator: Operator) -> str:
    """A coarse group of operators, for filters and tables."""
    name = operator.full_name
    for prefix, group in (
        ("nn.functional.", "nn"),
        ("linalg.", "linalg"),
        ("fft.", "fft"),
        ("special.", "special"),
        ("masked.", "masked"),
        ("signal.", "signal"),
        ("sparse.", "sparse"),
    ):
        if name.startswith(prefix):
            return group
    if name in RANDOM:
        return "random"
    return shape_rule(operator) or "other"


@cache
def autocast_policies() -> dict[str, str]:
    """The entries that torch's autocast lists share: function -> "low", "float32" or "banned"."""
    try:
        from torch.testing._internal import autocast_test_lists as lists
    except ImportError as error:
        raise _missing(error, "lists of autocast") from error
    kinds: list[Any] = [lists.AutocastTestLists, lists.AutocastCPUTestLists]
    with torch.random.fork_rng(devices=[]):  # they draw arguments for the functions, unused here
        accelerator, host = (kind(torch.device("cpu")) for kind in kinds)

    def names(of: Any, *attributes: str) -> set[str]:
        return {entry[0] for attribute in attributes for entry in getattr(of, attribute, [])}

    low = names(accelerator, "torch_fp16", "nn_fp16") & names(host, "torch_16", "nn_16")
    full = names(accelerator, "torch_fp32", "nn_fp32") & names(host, "torch_fp32", "nn_fp32")
    banned = names(accelerator, "banned")
    return {
        **dict.fromkeys(banned, "banned"),
        **dict.fromkeys(low, "low"),
        **dict.fromkeys(full, "float32"),
    }
