# SPDX-License-Identifier: BSD-3-Clause
"""Mixed precision: autocast and GradScaler."""

import torch

from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.inputs.torch_testing import dtype_name
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable


def _dtypes(run: Run) -> list[torch.dtype]:
    """The dtypes that autocast supports there."""
    module = run.under_test.module
    offered = getattr(module, "get_amp_supported_dtype", lambda: [torch.bfloat16])()
    left_out = run.under_test.expectations.unsupported_dtypes
    found = [
        dtype
        for dtype in (torch.bfloat16, torch.float16)
        if dtype in offered and dtype_name(dtype) not in left_out
    ]
    if not found:
        raise NotApplicable(f"get_amp_supported_dtype() is {offered}")
    return found


def _dtype(run: Run) -> torch.dtype:
    return _dtypes(run)[0]


@contract()
def autocast_lowers_matrix_products(run: Run) -> None:
    """In autocast, a matrix product of float32 has the lower dtype, and only there."""
    dtype = _dtype(run)
    one = torch.ones(4, 4).to(run.device)
    with torch.autocast(run.device.type, dtype=dtype):
        same("inside", (one @ one).dtype, dtype)
        same("is_autocast_enabled()", torch.is_autocast_enabled(run.device.type), True)
    same("after", (one @ one).dtype, torch.float32)


@contract()
def autocast_lowers_to_what_was_asked(run: Run) -> None:
    """A product in autocast has the dtype that was asked for, of each that the device offers."""
    one = torch.ones(4, 4).to(run.device)
    for dtype in _dtypes(run):
        with torch.autocast(run.device.type, dtype=dtype):
            same(f"a product with dtype={dtype}", torch.mm(one, one).dtype, dtype)


@contract()
def autocast_keeps_what_needs_precision(run: Run) -> None:
    """In autocast, a sensitive operator computes in float32."""
    values = torch.ones(4).to(run.device).to(_dtype(run))
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        loss = torch.nn.functional.mse_loss(values, torch.zeros(4).to(run.device).to(values.dtype))
        same("dtype of a loss", loss.dtype, torch.float32)


@contract()
def autocast_leaves_other_operators_alone(run: Run) -> None:
    """In autocast, operators that are in none of its lists run as always."""
    values = on(run.device, 1, 2, 3)
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        same("a sum", values + values, torch.tensor([2.0, 4.0, 6.0]))
        same("a copy", values.clone(), torch.tensor([1.0, 2.0, 3.0]))
        same("relu()", values.relu(), torch.tensor([1.0, 2.0, 3.0]))


@contract()
def autocast_nests(run: Run) -> None:
    """An inner autocast(enabled=False) switches it off, and its end switches it on again."""
    dtype, one = _dtype(run), torch.ones(4, 4).to(run.device)
    with torch.autocast(run.device.type, dtype=dtype):
        with torch.autocast(run.device.type, enabled=False):
            same("inside", (one @ one).dtype, torch.float32)
        same("outside", (one @ one).dtype, dtype)


@contract()
def autocast_restores_after_exceptions(run: Run) -> None:
    """autocast ends with an exception of its body."""

    def body() -> None:
        with torch.autocast(run.device.type, dtype=_dtype(run)):
            raise KeyError("from the body")

    refuses("the body", body, KeyError)
    same("is_autocast_enabled()", torch.is_autocast_enabled(run.device.type), False)


@contract()
def autocast_trains(run: Run) -> None:
    """A layer's result has the lower dtype in autocast, and gradients of its weights float32."""
    module = torch.nn.Linear(4, 4).to(run.device)
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        output = module(torch.ones(2, 4).to(run.device))
    same("dtype of the output", output.dtype, _dtype(run))
    torch.autograd.backward(output.float().sum())
    assert module.weight.grad is not None
    same("dtype of grad", module.weight.grad.dtype, torch.float32)
    same("grad", module.weight.grad, torch.full((4, 4), 2.0))


@contract()
def autocast_casts_weights_anew(run: Run) -> None:
    """A weight that changes between two regions of autocast is cast again in the second."""
    weight = torch.zeros(4, 4).to(run.device).requires_grad_()
    one = torch.eye(4).to(run.device)
    for value in (1.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        with torch.autocast(run.device.type, dtype=_dtype(run)):
            products = {"@": one @ weight, "linear()": torch.nn.functional.linear(one, weight)}
        for name, product in products.items():
            same(f"{name} with {value:g}", product.detach().float(), torch.full((4, 4), value))


@contract(no_cpu="the CPU is autocast's own")
def autocast_of_the_cpu_is_another(run: Run) -> None:
    """autocast of the CPU does not touch the device, and the other way round."""
    here, there = torch.ones(4, 4), torch.ones(4, 4).to(run.device)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same("on the device", (there @ there).dtype, torch.float32)
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        same("on the CPU", (here @ here).dtype, torch.float32)


@contract()
def autocast_dtype_is_settable(run: Run) -> None:
    """set_autocast_dtype() is what autocast without dtype= uses."""
    kind = run.device.type
    before = torch.get_autocast_dtype(kind)
    one = torch.ones(4, 4).to(run.device)
    torch.set_autocast_dtype(kind, _dtype(run))
    try:
        with torch.autocast(kind):
            same("a product", (one @ one).dtype, _dtype(run))
    finally:
        torch.set_autocast_dtype(kind, before)


def _step(run: Run, grad: float) -> tuple[torch.Tensor, torch.amp.GradScaler]:
    """A step of SGD whose gradient is `grad`, scaled by 8."""
    parameter = on(run.device, 1, 1).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler(run.device.type, init_scale=8.0, growth_interval=1)
    loss = (parameter * grad).sum()
    torch.autograd.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()
    return parameter.detach(), scaler


@contract()
def scaler_scales_and_unscales(run: Run) -> None:
    """GradScaler's step is the unscaled one, and its scale grows after a good step."""
    parameter, scaler = _step(run, 0.25)
    same("the parameter", parameter, torch.tensor([0.75, 0.75]))
    same("get_scale()", scaler.get_scale(), 16.0)


@contract()
def scaler_skips_infinite_gradients(run: Run) -> None:
    """GradScaler leaves out a step with an infinite gradient and lowers its scale."""
    parameter, scaler = _step(run, float("inf"))
    same("the parameter", parameter, torch.tensor([1.0, 1.0]))
    same("get_scale()", scaler.get_scale(), 4.0)
    parameter, _ = _step(run, float("nan"))
    same("the parameter after NaN", parameter, torch.tensor([1.0, 1.0]))


@contract()
def scaler_sees_each_gradient(run: Run) -> None:
    """GradScaler leaves a step out where one gradient of several is infinite, whichever it is."""
    for place in range(3):
        parameters = [on(run.device, 1, 1).requires_grad_() for _ in range(3)]
        scaler = torch.amp.GradScaler(run.device.type, init_scale=8.0)
        factors = [float("inf") if number == place else 0.25 for number in range(3)]
        products = [one * by for one, by in zip(parameters, factors, strict=True)]
        torch.autograd.backward(scaler.scale(torch.stack(products).sum()))
        scaler.step(torch.optim.SGD(parameters, lr=1.0))
        scaler.update()
        for number, parameter in enumerate(parameters):
            what = f"parameter {number} where gradient {place} is infinite"
            same(what, parameter.detach(), torch.tensor([1.0, 1.0]))


@contract()
def scaler_unscales_every_dtype(run: Run) -> None:
    """GradScaler.unscale_() divides gradients of each dtype by the scale, and tells NaN in each."""
    left_out = run.under_test.expectations.unsupported_dtypes
    kinds = (torch.float32, torch.float64, torch.bfloat16)
    for dtype in (kind for kind in kinds if dtype_name(kind) not in left_out):
        for grad, expected in ((4.0, [0.5, 0.5]), (float("nan"), [1.0, 1.0])):
            parameter = on(run.device, 1, 1).to(dtype).requires_grad_()
            scaler = torch.amp.GradScaler(run.device.type, init_scale=8.0)
            torch.autograd.backward(scaler.scale((parameter * (grad / 8)).float().sum()))
            scaler.step(torch.optim.SGD([parameter], lr=1.0))
            what = f"a parameter of {dtype_name(dtype)} after a gradient of {grad / 8}"
            same(what, parameter.detach().float(), torch.tensor(expected))


@contract(two_devices=True, no_cpu="there is one CPU")
def scaler_serves_two_devices(run: Run) -> None:
    """GradScaler leaves a step out where the gradient of either device is infinite, or unscales."""
    second = other_device(run)
    for factors in ((0.5, 0.5), (float("inf"), 0.5), (0.5, float("inf"))):
        places = (run.device, second)
        parameters = [on(place, 1, 1).requires_grad_() for place in places]
        scaler = torch.amp.GradScaler(run.device.type, init_scale=8.0)
        products = [(one * by).sum() for one, by in zip(parameters, factors, strict=True)]
        torch.autograd.backward(scaler.scale(products[0] + products[1].to(run.device)))
        scaler.step(torch.optim.SGD(parameters, lr=1.0))
        left = 1.0 if float("inf") in factors else 0.5
        for parameter, place in zip(parameters, places, strict=True):
            what = f"the parameter on {place} with gradients {factors}"
            same(what, parameter.detach(), torch.tensor([left, left]))


@contract()
def scaler_state_goes_round(run: Run) -> None:
    """A GradScaler's state_dict() can be loaded into another."""
    _, scaler = _step(run, 0.25)
    other = torch.amp.GradScaler(run.device.type)
    other.load_state_dict(scaler.state_dict())
    same("get_scale()", other.get_scale(), scaler.get_scale())
    require(other.is_enabled(), "it is disabled")


@contract()
def autocast_leaves_doubles_and_integers(run: Run) -> None:
    """A product of float64 stays float64 in autocast, and integers stay integers."""
    left_out = run.under_test.expectations.unsupported_dtypes
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        if "float64" not in left_out:
            double = torch.ones(2, 2, dtype=torch.float64).to(run.device)
            same("a product of float64", (double @ double).dtype, torch.float64)
        whole = torch.ones(2, dtype=torch.int64).to(run.device)
        same("a sum of int64", (whole + whole).dtype, torch.int64)


# Operators of one operand for which torch's own lists say float32.
_PRECISE = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    softmax.int log_softmax.int cumprod cumsum sum prod norm.Scalar""".split()


@contract(no_cpu="autocast of the CPU has lists of its own")
def autocast_knows_its_operators(run: Run) -> None:
    """Operators that the backend itself registers for autocast have the dtype of torch's lists."""
    kind = run.device.type
    key = "AutocastPrivateUse1" if kind == torch._C._get_privateuse1_backend_name() else ""
    listed = dict.fromkeys(_PRECISE, torch.float32)
    listed |= {name: _dtype(run) for name in ("mm", "matmul", "bmm", "mv", "addmm", "linear")}
    asked = 0
    for name, expected in listed.items():
        full = f"aten::{name}"
        if not key or not torch._C._dispatch_has_kernel_for_dispatch_key(full, key):
            continue
        asked += 1
        given = torch.full((2, 2), 0.5).to(run.device)
        if expected == torch.float32:
            given = given.to(_dtype(run))
        with torch.autocast(kind, dtype=_dtype(run)):
            same(f"dtype of {full}", _called(name, given).dtype, expected)
    if not asked:
        raise NotApplicable("the backend registers none of torch's lists")


def _called(name: str, given: torch.Tensor) -> torch.Tensor:
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    more: tuple[object, ...] = ()
    if packet in ("mm", "matmul", "linear"):
        more = (given,)
    elif packet == "bmm":
        return function(given[None], given[None])  # type: ignore[no-any-return]
    elif packet == "mv":
        more = (given[0],)
    elif packet == "addmm":
        more = (given, given)
    elif packet in ("softmax", "log_softmax", "cumprod", "cumsum"):
        more = (0,)
    return function(given, *more)  # type: ignore[no-any-return]


@contract(no_cpu="autocast of the CPU takes it")
def autocast_refuses_what_overflows(run: Run) -> None:
    """binary_cross_entropy() in autocast raises, or computes in float32."""
    values = torch.full((4,), 0.5).to(run.device)
    with torch.autocast(run.device.type, dtype=_dtype(run)):
        try:
            loss = torch.nn.functional.binary_cross_entropy(values, values)
        except RuntimeError as error:
            require("autocast" in str(error), f"it raised {str(error)[:120]!r}")
            return
    same("dtype of the loss", loss.dtype, torch.float32)


@contract()
def scaler_keeps_to_its_settings(run: Run) -> None:
    """GradScaler grows by its factor after so many good steps, and backs off by its other one."""
    parameter = on(run.device, 1, 1).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler(
        run.device.type, init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2
    )
    scales = []
    for grad in (1.0, 1.0, 1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale((parameter * grad).sum()))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    same("scales after each step", scales, [8.0, 32.0, 32.0, 8.0, 8.0, 32.0])
