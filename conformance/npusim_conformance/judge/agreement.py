# SPDX-License-Identifier: BSD-3-Clause
"""Whether a device's result is the CPU's.

Equal bits are agreement. Otherwise, unless equal bits were demanded, the difference is held against
a tolerance, and one beyond it against a recomputation in float64: a device that is about as close
to the exact result as the CPU is not wrong.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs.variation import (
    DOUBLES,
    Noise,
    Recompute,
    is_half_complex,
    shake,
    widen,
)
from npusim_conformance.verdict import ErrorSize, Mismatch

# A device may be this many times farther from the exact result than the CPU.
HOST_ERROR_FACTOR = 2.0
# An element that depends on no other is held against its own magnitude too: the CPU's worst error
# may lie at an element of 1e30. So many roundings are allowed of it, or of 1 if it is smaller:
# x ** y loses the bits that y * log(x) has before the point, which are at most seven in float32.
ELEMENT_ROUNDINGS = 128
# torch.testing's tolerance for float64 is that of a float32 kernel, and there is no wider dtype to
# recompute in. So beyond DOUBLE_RTOL the CPU's own result must be as uncertain: it must move nearly
# as far when its inputs change in their last bits.
DOUBLE_RTOL = 1e-11
DOUBLE_FACTOR = 1000.0
# A normalisation multiplies by up to 1 / sqrt(eps), which is 1e-5 as a rule: so far a mean that was
# rounded is seen where the variance is 0, as in a row of one element.
AMPLIFICATION = 1e-5**-0.5

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ULP_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


@dataclass
class Agreement:
    """Compares results for one case and remembers the largest difference that it accepted."""

    bitwise: bool = False
    rtol: float | None = None  # None: torch.testing's tolerance for the dtype
    atol: float | None = None
    amplifies: bool = False  # the operator is a normalisation
    elementwise: bool = False  # elements of results depend on one element of each operand
    where: str = "on the CPU"  # what results are held against, for messages
    largest: ErrorSize | None = field(default=None, init=False)

    def check(
        self,
        expected: Any,
        got: Any,
        device: torch.device,
        what: str = "result",
        recompute: Recompute | None = None,
    ) -> None:
        """Raises Mismatch unless `got`, on `device`, is what the CPU gave.

        Structure, dtypes, shapes and layouts must be equal, and scalars too; values must agree.
        `recompute` gives the same tree on the CPU for inputs that are varied.
        """
        if isinstance(expected, torch.Tensor):  # the most frequent, by far
            self._check_tensor(expected, got, device, what, recompute)
            return
        expected_leaves, expected_tree = pytree.tree_flatten(expected)
        got_leaves, got_tree = pytree.tree_flatten(got)
        if len(expected_leaves) != len(got_leaves):
            raise Mismatch(f"{what}: structure {got_tree}, {self.where} {expected_tree}")
        many = len(expected_leaves) > 1
        for number, (one, other) in enumerate(zip(expected_leaves, got_leaves, strict=True)):
            name = f"{what} {number}" if many else what
            if isinstance(one, torch.Tensor):
                self._check_tensor(one, other, device, name, recompute and _leaf(recompute, number))
            elif not isinstance(one, torch.device):
                self._check_scalar(one, other, name, self.where)

    def check_metadata(
        self, expected: Any, got: Any, device: torch.device, what: str = "result"
    ) -> None:
        """check() without values, for results that are random or uninitialised."""
        expected_leaves, got_leaves = pytree.tree_leaves(expected), pytree.tree_leaves(got)
        if len(expected_leaves) != len(got_leaves):
            raise Mismatch(
                f"{what}: {len(got_leaves)} results, {self.where} {len(expected_leaves)}"
            )
        for number, (one, other) in enumerate(zip(expected_leaves, got_leaves, strict=True)):
            if isinstance(one, torch.Tensor):
                _check_metadata(one, other, device, f"{what} {number}", self.where)

    def _check_tensor(
        self,
        one: torch.Tensor,
        other: torch.Tensor,
        device: torch.device,
        name: str,
        recompute: Recompute | None,
    ) -> None:
        _check_metadata(one, other, device, name, self.where)
        if one.layout != torch.strided:
            members = zip(_members(one), _members(other), strict=True)
            for number, (left, right) in enumerate(members):
                self._check_tensor(left, right, device, f"{name}, member {number}", None)
            return
        if one.is_quantized:
            one, other = one.int_repr(), other.int_repr()
        comparable = one.itemsize > 1 and not is_half_complex(one.dtype)  # torch.equal() cannot
        if not self.bitwise and comparable and torch.equal(one.cpu(), other.cpu()):
            return  # most results, and the cheapest way to see it
        expected = plain(one)
        got = plain(other)
        if same_bits(expected, got):
            return
        self._judge(expected, got, name, recompute)

    def _judge(
        self,
        expected: torch.Tensor,
        got: torch.Tensor,
        name: str,
        recompute: Recompute | None,
    ) -> None:
        if not (expected.is_floating_point() or expected.is_complex()):
            wrong = int((expected != got).sum())
            raise Mismatch(
                f"{name}: {wrong} of {expected.numel()} elements differ from those {self.where}"
            )
        error = error_size(expected, got)
        if not self.bitwise and self._close(expected, got):
            if recompute is not None and self.rtol is None and self.atol is None:
                _check_double(expected, got, name, error, recompute)
            self._remember(error)
            return
        if recompute is not None and not self.bitwise:
            error, is_as_exact = self._against_exact(expected, got, error, recompute)
            if is_as_exact:
                self._remember(error)
                return
        raise Mismatch(f"{name}: {describe(error)}{self._demand(expected.dtype)}", error)

    def _close(self, expected: torch.Tensor, got: torch.Tensor) -> bool:
        try:
            if is_half_complex(expected.dtype) or expected.element_size() == 1:
                wide = torch.complex64 if expected.is_complex() else torch.float32
                expected, got = expected.to(wide), got.to(wide)
                rtol, atol = self.rtol or 1e-2, self.atol or 1e-3
            else:
                rtol, atol = self.rtol, self.atol  # type: ignore[assignment]
                if (rtol is None) != (atol is None):
                    rtol, atol = rtol or 0.0, atol or 0.0
            torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError:
            return False
        return True

    def _demand(self, dtype: torch.dtype) -> str:
        if self.bitwise:
            return "; equal bits are demanded"
        return f"; tolerance for {dtype} exceeded"

    def _against_exact(
        self,
        expected: torch.Tensor,
        got: torch.Tensor,
        error: ErrorSize,
        recompute: Recompute,
    ) -> tuple[ErrorSize, bool]:
        try:
            best = plain(recompute(widen))
        except Exception:  # no float64 kernel, or an argument that fixes the dtype
            return error, False
        if best.shape != expected.shape:
            return error, False
        # Where the two agree the device has nothing to answer for; where the CPU overflowed it
        # sets no measure.
        device = torch.where(_differences(expected, got) == 0, 0.0, _differences(got, best))
        host = _differences(expected, best)
        host_largest = _maximum(host[host.isfinite()])
        # An element may be rounded once more than the CPU's worst one, by its own magnitude.
        rounding = _resolution(expected.dtype) * _widen(best).abs().nan_to_num(0.0, 0.0, 0.0)
        if self.amplifies:
            rounding += self._amplified(expected.dtype, best, recompute)
        is_as_exact = bool((device <= HOST_ERROR_FACTOR * host_largest + rounding).all())
        if self.elementwise:
            is_as_exact &= self._is_exact_by_element(expected.dtype, best, device, host)
        judged = ErrorSize(
            error.absolute,
            error.relative,
            error.ulp,
            device=_maximum(device),
            host=host_largest,
        )
        return judged, is_as_exact

    @staticmethod
    def _is_exact_by_element(
        dtype: torch.dtype, best: torch.Tensor, device: torch.Tensor, host: torch.Tensor
    ) -> bool:
        """Whether each error is small beside its own element, as those of the CPU are."""
        magnitude = _widen(best).abs()
        measured = (magnitude > 0) & magnitude.isfinite() & host.isfinite()
        worst = _maximum((host / magnitude)[measured])
        rounding = ELEMENT_ROUNDINGS * _resolution(dtype) * magnitude.clamp(min=1.0)
        return bool((device <= HOST_ERROR_FACTOR * worst * magnitude + rounding)[measured].all())

    @staticmethod
    def _amplified(dtype: torch.dtype, best: torch.Tensor, recompute: Recompute) -> torch.Tensor:
        """The rounding that is allowed where the exact result does not depend on the input."""
        noise = Noise()
        other = plain(recompute(noise))
        allowed = AMPLIFICATION * _resolution(dtype) * noise.magnitude
        return torch.where(_differences(best, other) == 0, allowed, 0.0)

    def _remember(self, error: ErrorSize) -> None:
        if self.largest is None or error.absolute > self.largest.absolute:
            self.largest = error

    @staticmethod
    def _check_scalar(one: Any, other: Any, name: str, where: str) -> None:
        if isinstance(one, (int, float, complex, bool)) and isinstance(
            other, (int, float, complex, bool)
        ):
            close = one == other or (one != one and other != other)
            if not close and isinstance(one, float) and isinstance(other, float):
                close = math.isclose(one, other, rel_tol=1.3e-6, abs_tol=1e-5)
            if not close:
                raise Mismatch(f"{name}: {other!r}, {where} {one!r}")
        elif type(one) is not type(other):
            raise Mismatch(f"{name}: {other!r}, {where} {one!r}")
        elif isinstance(one, (str, torch.dtype, torch.Size)) and one != other:
            raise Mismatch(f"{name}: {other!r}, {where} {one!r}")


def _leaf(recompute: Recompute, number: int) -> Recompute:
    return lambda vary: pytree.tree_leaves(recompute(vary))[number]


def _check_double(
    expected: torch.Tensor, got: torch.Tensor, name: str, error: ErrorSize, recompute: Recompute
) -> None:
    """Raises where a float64 result is no better than one computed in float32."""
    if expected.dtype not in DOUBLES:
        return
    difference = _differences(expected, got)
    finite = expected.abs()[expected.isfinite()]
    allowed = DOUBLE_RTOL * (expected.abs().nan_to_num(0.0, 0.0) + _maximum(finite))
    if bool((difference <= allowed).all()):
        return
    try:
        own = _maximum(_differences(expected, plain(recompute(shake))))
    except Exception:  # nothing is known of the CPU's own uncertainty
        return
    if _maximum(difference) > DOUBLE_FACTOR * own:
        raise Mismatch(
            f"{name}: {describe(error)}; the CPU's own result moves by {own:.3g} when its inputs "
            "change in their last bits",
            error,
        )


def _check_metadata(
    one: torch.Tensor, other: Any, device: torch.device, name: str, where: str
) -> None:
    if not isinstance(other, torch.Tensor):
        raise Mismatch(f"{name}: a {type(other).__name__}, {where} a tensor")
    facts = (one.dtype, one.shape, one.layout, device)
    if facts == (other.dtype, other.shape, other.layout, other.device):
        return
    if other.device != device:
        raise Mismatch(f"{name}: on {other.device}, expected on {device}")
    for attribute in ("dtype", "shape", "layout"):
        expected, got = getattr(one, attribute), getattr(other, attribute)
        if expected != got:
            raise Mismatch(f"{name}: {attribute} {got}, {where} {expected}")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values on the CPU: detached, contiguous, conj and neg bits resolved."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous CPU tensors of one shape and dtype hold equal bytes."""
    if one.numel() == 0:
        return True
    size = one.element_size() // (2 if one.is_complex() else 1)
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    integer = _INTEGER_OF_SIZE[size]
    return torch.equal(one.view(integer), other.view(integer))


def error_size(expected: torch.Tensor, got: torch.Tensor) -> ErrorSize:
    """The largest absolute, relative and ulp error of `got`; NaNs in one only count as infinite."""
    absolute = _differences(expected, got)
    magnitude = _widen(expected).abs()
    relative = torch.where(absolute == 0, 0.0, absolute / magnitude)
    ulp = None
    if expected.dtype in _ULP_DTYPES and expected.numel():
        one, other = _ordered(expected), _ordered(got)
        distance = (one.double() - other.double()).abs()
        distance = torch.where(distance < 2**53, (one - other).abs().double(), distance)
        ulp = float(torch.where(expected.isnan() & got.isnan(), 0.0, distance).max())
    return ErrorSize(_maximum(absolute), _maximum(relative), ulp)


def describe(error: ErrorSize) -> str:
    """One clause for a message."""
    text = f"largest error {error.absolute:.3g}, relative {error.relative:.3g}"
    if error.ulp is not None:
        text += f", {error.ulp:.0f} ulp"
    if error.device is not None and error.host is not None:
        text += f"; from float64: device {error.device:.3g}, CPU {error.host:.3g}"
    return text


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats, one apart where the floats are neighbours."""
    size = values.element_size()
    bits = values.view(_INTEGER_OF_SIZE[size]).to(torch.int64)
    return torch.where(bits < 0, -(bits & (2 ** (8 * size - 1) - 1)), bits)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _differences(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    left, right = _widen(one), _widen(other)
    same = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(same, torch.zeros_like(left), left - right).abs()
    return torch.where(difference.isnan(), math.inf, difference)


def _maximum(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _resolution(dtype: torch.dtype) -> float:
    real = dtype.to_real() if dtype.is_complex else dtype
    return torch.finfo(real).eps


def _members(sparse: torch.Tensor) -> list[torch.Tensor]:
    sparse = sparse.detach()
    if sparse.is_nested:
        return list(sparse.unbind())
    if sparse.layout == torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]
