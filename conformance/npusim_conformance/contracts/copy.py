# SPDX-License-Identifier: BSD-3-Clause
"""Copies between the CPU and the device, within it, and between two of its kind."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.inputs.torch_testing import DTYPE_ORDER, dtype_name
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import Mismatch


def _dtypes(run: Run) -> list[torch.dtype]:
    left_out = run.under_test.expectations.unsupported_dtypes
    return [dtype for dtype in DTYPE_ORDER if dtype_name(dtype) not in left_out]


def _bits(dtype: torch.dtype) -> torch.Tensor:
    """All bytes but those that no bool holds."""
    count = 2 if dtype == torch.bool else 256
    return (torch.arange(512) % count).to(torch.uint8).view(dtype)


def same_bytes(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises Mismatch unless all bytes are equal; it names the first other element by both."""
    same(f"number of elements of {what}", got.numel(), expected.numel())
    one, other = (values.cpu().contiguous().flatten() for values in (got, expected))
    bits = [values.view(torch.uint8).view(len(one), -1) for values in (one, other)]
    for at in (bits[0] != bits[1]).any(1).nonzero().flatten().tolist():
        shown = [
            f"{values[at].item()} (bytes {bytes(row[at].tolist()).hex()})"
            for values, row in zip((one, other), bits, strict=True)
        ]
        raise Mismatch(f"element {at} of {what}: {shown[0]}, expected {shown[1]}")


@contract()
def every_dtype_goes_round(run: Run) -> None:
    """To the device, within it and back, a copy keeps every bit of every dtype."""
    for dtype in _dtypes(run):
        here = _bits(dtype)
        there = here.to(run.device)
        same(f"dtype of {dtype_name(dtype)}", there.dtype, dtype)
        same_bytes(f"{dtype_name(dtype)} there and back", there, here)
        same_bytes(f"{dtype_name(dtype)} cloned there", there.clone(), here)
        target = torch.empty_like(there)
        target.copy_(there)
        same_bytes(f"{dtype_name(dtype)} copied there", target, here)


# (shape, strides, offset) of views; a whole is one dimension of what they need.
Lies = tuple[tuple[int, ...], tuple[int, ...], int]
# Below and above 64 KiB of float32, no multiple of a block; then one element, and none.
SHAPES = ((2, 3, 4, 5), (3, 7, 29, 31), (1, 1, 1, 1), (2, 0, 3, 1))
SMALL, LARGE = SHAPES[:2]
# As copied; the kinds of a pair are all converted into each other.
NUMBERS = {
    torch.float32: (0.0, 1.0, 0.5, 2.75, 100.0, -3.5, -0.5),
    torch.float64: (0.0, 1.0, 0.1, 2.75, 100.0, -3.5, -0.5),
    torch.int64: (0, 1, 2**40 + 1, 2**53 + 1, 100, -3, -(2**35) - 7),
}


def _targets(shape: tuple[int, ...]) -> Iterator[tuple[str, Lies]]:
    """Layouts in which every element has a place of its own."""
    rows = torch.empty(shape, device="meta")
    channels = torch.empty(shape, device="meta").to(memory_format=torch.channels_last)
    columns = torch.empty(shape[::-1], device="meta").stride()[::-1]
    yield "contiguous", (shape, rows.stride(), 0)
    yield "transposed", (shape, columns, 0)
    yield "channels_last", (shape, channels.stride(), 0)
    yield "padded", (shape, tuple(2 * stride for stride in rows.stride()), 1)
    yield "with an offset", (shape, rows.stride(), 3)


def _sources(shape: tuple[int, ...]) -> Iterator[tuple[str, Lies]]:
    """Also those in which elements share their places."""
    yield from _targets(shape)
    yield "expanded", (shape, (0, *torch.empty(shape, device="meta").stride()[1:]), 0)
    yield "expanded from one element", (shape, (0,) * len(shape), 2)
    yield "overlapping", (shape, (3, 2, 1, 1), 0)


def _room(lies: Lies) -> int:
    shape, strides, offset = lies
    return offset + 2 + sum(abs(n - 1) * by for n, by in zip(shape, strides, strict=True))


def _whole(dtype: torch.dtype, lies: Lies) -> torch.Tensor:
    """The memory of a source, on the CPU: numbers that tell their places apart."""
    count = _room(lies)
    numbers = NUMBERS.get(dtype)
    if numbers is None:
        return torch.arange(count).to(dtype)
    return torch.tensor(numbers, dtype=dtype).repeat(count // len(numbers) + 1)[:count]


def _copied(run: Run, there: torch.Tensor, source: Lies, clean: torch.Tensor,
            expected: torch.Tensor, target: Lies, blocks: bool) -> str:  # fmt: skip
    """The fault of one copy, or nothing. Only whole contiguous tensors are moved for it."""
    got = clean.clone()
    got.as_strided(*target).copy_(there.as_strided(*source), non_blocking=not blocks)
    run.under_test.synchronize()
    if torch.equal(got.cpu(), expected):
        return ""
    found, right = got.cpu().as_strided(*target), expected.as_strided(*target)
    differs = found != right
    if not differs.any():
        filled = torch.equal(clean.cpu(), torch.full(clean.shape, 77, dtype=clean.dtype))
        return (
            "the copy is right, but memory around it is changed"
            if filled
            else "the copy is right; memory around it was wrong before, when it was filled"
        )
    first = f"the first is {found[differs][0]}, expected {right[differs][0]}"
    return f"{int(differs.sum())} of {right.numel()} elements are wrong; {first}"


def _check(run: Run, shape: tuple[int, ...], names: tuple[str, str], lies: tuple[Lies, Lies],
           kinds: tuple[torch.dtype, ...], places: tuple[torch.device, ...]) -> None:  # fmt: skip
    is_plain = kinds == (torch.float32, torch.float32)
    here = torch.arange(float(_room(lies[0]))) if is_plain else _whole(kinds[0], lies[0])
    expected = torch.full((_room(lies[1]),), 77, dtype=kinds[1])
    there, clean = here.to(places[0]), expected.to(places[1], copy=True)
    expected.as_strided(*lies[1]).copy_(here.as_strided(*lies[0]))
    for blocks in (True, False):
        wrong = _copied(run, there, lies[0], clean, expected, lies[1], blocks)
        how = "" if blocks else ", non_blocking"
        if (wrong or not blocks) and not torch.equal(there.cpu(), here):
            wrong, how = "a copy changes its source", ""
        if wrong:
            sides = " to ".join(
                f"{name} {dtype_name(kind)} on {place}"
                for name, kind, place in zip(names, kinds, places, strict=True)
            )
            raise Mismatch(f"{sides}, {'x'.join(map(str, shape))}{how}: {wrong}")


def _all_layouts(
    run: Run,
    places: tuple[torch.device, ...],
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
) -> None:
    for shape in shapes:
        for one, source in _sources(shape):
            for other, target in _targets(shape):
                kinds = (torch.float32, torch.float32)
                _check(run, shape, (one, other), (source, target), kinds, places)


def _all_kinds(run: Run, places: tuple[torch.device, ...]) -> None:
    """Conversions: of all kinds where memory is contiguous, of some in other layouts."""
    left_out = run.under_test.expectations.unsupported_dtypes
    kinds = (*NUMBERS, torch.float16, torch.bfloat16, torch.int32, torch.bool)
    kinds = tuple(kind for kind in kinds if dtype_name(kind) not in left_out)
    for shape in (SMALL, LARGE):
        layouts = dict(_targets(shape))
        for one in (kind for kind in kinds if kind in NUMBERS):
            for other in kinds:
                names, lies = ("contiguous",) * 2, (layouts["contiguous"],) * 2
                _check(run, shape, names, lies, (one, other), places)
        if {torch.float64, torch.float32} <= set(kinds):
            pair = (torch.float64, torch.float32)
            for one_name, other_name in product(("contiguous", "transposed", "padded"), repeat=2):
                lies = (layouts[one_name], layouts[other_name])
                _check(run, shape, (one_name, other_name), lies, pair, places)


@contract()
def layouts_are_copied_right(run: Run) -> None:
    """From any layout to any layout, of any size, values arrive where they belong."""
    cpu = torch.device("cpu")
    for places in ((cpu, run.device), (run.device, cpu), (run.device, run.device)):
        _all_layouts(run, places)


@contract()
def layouts_survive_the_way(run: Run) -> None:
    """to(device) keeps values and strides of dense tensors."""
    for shape in SHAPES[:2]:
        for name, lies in _targets(shape):
            here = _whole(torch.float32, lies).as_strided(*lies)
            there = here.to(run.device)
            same(f"{name}: to(device)", there, here)
            if name != "padded":
                same(f"{name}: strides there", there.stride(), here.stride())


@contract()
def kinds_are_converted_on_the_way(run: Run) -> None:
    """A copy that converts gives the CPU's numbers in every direction, in every layout."""
    cpu = torch.device("cpu")
    for places in ((cpu, run.device), (run.device, cpu), (run.device, run.device)):
        _all_kinds(run, places)


@contract()
def padding_is_left_alone(run: Run) -> None:
    """A copy into a part of a tensor changes that part only, from the CPU and from the device."""
    for source in (torch.ones(2, 2), torch.ones(2, 2).to(run.device)):
        whole = torch.full((4, 5), -1.0).to(run.device)
        whole[1:3, 1:5:3].copy_(source)
        expected = torch.full((4, 5), -1.0)
        expected[1:3, 1:5:3] = 1
        same(f"the whole after a copy from {source.device.type}", whole, expected)
    # With another dtype the copy goes through a buffer; it must still find its place.
    for kind in (torch.float32, torch.float16, torch.int32):
        there, here = torch.ones(2, 2).to(run.device), torch.ones(2, 2)
        for source, place in ((there, here.device), (here, run.device)):
            whole = torch.full((4, 5), -1.0, device=place)
            whole[1:3, 1:5:3].copy_(source.to(kind))
            same(f"the whole on {place.type} after a copy of {kind}", whole, expected)


@contract()
def copies_broadcast(run: Run) -> None:
    """copy_() broadcasts its source, also from the CPU and to it."""
    row = torch.tensor([1.0, 2.0, 3.0])
    expected = row.expand(4, 3)
    there = torch.empty(4, 3, device=run.device)
    same("from the CPU", there.copy_(row), expected)
    same("from the device", torch.empty_like(there).copy_(row.to(run.device)), expected)
    same("to the CPU", torch.empty(4, 3).copy_(row.to(run.device)), expected)
    same("of a scalar", there.copy_(torch.tensor(5.0)), torch.full((4, 3), 5.0))
    refuses("a source that does not broadcast", lambda: there.copy_(torch.ones(2)))
    for one, other in (((3, 2), (2, 3)), ((6,), (2, 3)), ((2, 3), (6,)), ((1, 2, 3), (2, 3, 1))):
        for start, end in ((CPU, run.device), (run.device, CPU), (run.device, run.device)):
            source, target = torch.ones(one).to(start), torch.ones(other).to(end)
            what = f"{list(one)} on {start} into {list(other)} on {end}"
            refuses(what, partial(target.copy_, source))


@contract()
def copies_convert(run: Run) -> None:
    """A copy converts between dtypes as the CPU does, in all directions."""
    numbers = [0.0, 1.0, 2.75, 100.0, -3.5]
    every = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
             torch.int64, torch.int8, torch.bool, torch.complex64)  # fmt: skip
    left_out = run.under_test.expectations.unsupported_dtypes
    kinds = [dtype for dtype in every if dtype_name(dtype) not in left_out]
    for source in kinds:
        here = torch.tensor(numbers).to(source)
        there = here.to(run.device)
        for target in kinds:
            if source.is_complex and not target.is_complex:
                continue  # it warns
            expected = here.to(target)
            name = f"{dtype_name(source)} to {dtype_name(target)}"
            same(f"{name} on the device", there.to(target), expected)
            same(f"{name} on the way there", here.to(run.device, target), expected)
            same(f"{name} on the way back", there.to("cpu", target), expected)
            same(f"{name} by copy_()", torch.empty(5, dtype=target).copy_(there), expected)
            over = torch.full((5,), 1 + 5j if target.is_complex else 1, dtype=target)
            same(f"{name} over others", over.to(run.device, copy=True).copy_(there), expected)
            same(f"{name} over others, from here", over.to(run.device).copy_(here), expected)


# Numbers that lie between two of a smaller dtype, below its least, or in its upper half.
_BETWEEN = (0.0, -0.0, 0.1, -0.7, 1 + 2**-8, 1 + 2**-8 + 2**-12, 2**-24, 2**-30, 1e-42, 65519.0,
            127.0, 200.0, 255.0, -128.0, 32768.0, 40000.0, float("inf"), float("nan"))  # fmt: skip


def _in_both(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Numbers of a dtype that another can hold: what becomes of the rest is nobody's promise."""
    numbers = torch.tensor(_BETWEEN, dtype=torch.float64)
    for dtype in (source, target):
        if not dtype.is_floating_point and dtype != torch.bool:
            limits = torch.iinfo(dtype)
            numbers = numbers[(numbers >= limits.min) & (numbers <= limits.max)]
    return numbers.to(source)


def _without_nan(values: torch.Tensor) -> torch.Tensor:
    infinity = float("inf")
    return torch.nan_to_num(values, 7, infinity, -infinity)


@contract()
def conversions_keep_to_the_nearest(run: Run) -> None:
    """Converted numbers are the CPU's at the ends of both dtypes: rounded, with sign, subnormal."""
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
             torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # fmt: skip
    left_in = [kind for kind in kinds if kind in _dtypes(run)]
    for source, target in product(left_in, repeat=2):
        here = _in_both(source, target)
        expected, name = here.to(target), f"{dtype_name(source)} to {dtype_name(target)}"
        for way, got in {
            "on the device": here.to(run.device).to(target),
            "on the way there": here.to(run.device, target),
            "on the way back": here.to(run.device).to("cpu", target),
        }.items():
            same_bytes(f"{name} {way}", _without_nan(got.cpu()), _without_nan(expected))


@contract()
def many_dimensions_are_copied_right(run: Run) -> None:
    """A copy of nine dimensions in turned order puts each element in its place."""
    shape = (2, 1, 3, 2, 1, 2, 2, 3, 2)
    here = torch.arange(288.0).view(shape)
    turned = tuple(reversed(range(len(shape))))
    expected = here.permute(turned).contiguous()
    there = here.to(run.device).permute(turned)
    same("within the device", there.contiguous(), expected)
    same("to the CPU", torch.empty_like(expected).copy_(there), expected)
    target = torch.empty(expected.shape, device=run.device)
    same("from the CPU", target.copy_(here.permute(turned)), expected)


@contract(two_devices=True, no_cpu="there is one CPU")
def scalars_cross_devices(run: Run) -> None:
    """A tensor without dimensions, and one with one element, keep their value on another device."""
    second = other_device(run)
    for one, other in ((run.device, second), (second, run.device)):
        same(f"from {one} to {other}", torch.tensor(5.0).to(one).to(other), torch.tensor(5.0))
        same(f"[1] from {one} to {other}", on(one, 6).to(other), torch.tensor([6.0]))


_COMPLEX = torch.tensor([1 + 2j, -3 + 0.5j, 0 - 1j])
_BITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": torch.Tensor.conj,
    "neg": lambda values: values.conj().imag,
    "conj of a part": lambda values: values[1:].conj(),
}


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().resolve_conj().resolve_neg()


def _bits_are_kept(run: Run, copied: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Asks for each view what `copied` makes of it, given as it lies here and there."""
    for name, view in _BITS.items():
        here = view(_COMPLEX)
        same(name, _resolved(copied(here, view(_COMPLEX.to(run.device)))), _resolved(here))


@contract()
def conj_and_neg_views_go_there(run: Run) -> None:
    """Conj and neg views of the CPU keep their values on the way to the device."""
    _bits_are_kept(run, lambda here, _: here.to(run.device))


@contract()
def conj_and_neg_views_come_back(run: Run) -> None:
    """Conj and neg views of the device keep their values on the way to the CPU."""
    _bits_are_kept(run, lambda _, there: there.cpu())


@contract()
def conj_and_neg_views_are_copied_there(run: Run) -> None:
    """copy_() of a conj or neg view within the device keeps its values."""
    _bits_are_kept(run, lambda _, there: torch.empty_like(there).copy_(there))


@contract()
def conj_and_neg_views_are_cloned(run: Run) -> None:
    """clone() and resolve_conj() of a conj or neg view keep its values."""
    _bits_are_kept(run, lambda _, there: there.clone())
    _bits_are_kept(run, lambda _, there: there.resolve_conj().resolve_neg())


@contract()
def conj_views_are_written_to(run: Run) -> None:
    """copy_() into a conj view writes the conjugates into its base."""
    base = torch.zeros(3, dtype=torch.complex64).to(run.device)
    base.conj().copy_(_COMPLEX.to(run.device))
    same("the base", base, _COMPLEX.conj().resolve_conj())


@contract()
def to_copies_only_when_it_must(run: Run) -> None:
    """to() returns the tensor itself where nothing changes, and a copy with copy=True."""
    there = on(run.device, 1, 2)
    require(there.to(run.device) is there, "to(its device) is another tensor")
    require(there.to(torch.float32) is there, "to(its dtype) is another tensor")
    other = there.to(run.device, copy=True)
    require(other.data_ptr() != there.data_ptr(), "copy=True gave the same memory")
    other.fill_(0)
    same("the original", there, torch.tensor([1.0, 2.0]))
    same("to(other tensor)", torch.ones(1).to(there).device, there.device)


@contract()
def overlapping_targets_are_refused(run: Run) -> None:
    """copy_() into a tensor whose elements share memory raises."""
    target = on(run.device, 1).expand(3)
    refuses("copy_() from the device", lambda: target.copy_(on(run.device, 1, 2, 3)))
    if not run.under_test.is_cpu:
        refuses("copy_() from the CPU", lambda: target.copy_(torch.ones(3)))


@contract()
def copies_to_itself(run: Run) -> None:
    """copy_() of a tensor to itself, and to another view of all of it, keeps it."""
    values = torch.arange(12.0).view(3, 4).to(run.device)
    values.copy_(values)
    same("after a copy to itself", values, torch.arange(12.0).view(3, 4))
    values.view(12).copy_(values.view(12))
    same("after a copy to a view", values, torch.arange(12.0).view(3, 4))


@contract()
def large_copies_arrive(run: Run) -> None:
    """Copies of 16 MiB and some bytes arrive whole, from contiguous and from strided memory."""
    here = torch.arange(1 << 22, dtype=torch.int32)
    for odd in (0, 3, 1021):  # elements beyond a whole number of blocks
        whole = torch.arange((1 << 22) + odd, dtype=torch.int32)
        same_bytes = torch.equal(whole.to(run.device).cpu(), whole)
        require(same_bytes, f"16 MiB and {4 * odd} bytes there and back are changed")
    for count in (300_000, (1 << 20) + 1021):  # without blocking, from memory that is not pinned
        part = here[:count]
        moved = part.to(run.device, non_blocking=True)
        run.under_test.synchronize()
        require(torch.equal(moved.cpu(), part), f"{4 * count} bytes, non_blocking, are changed")
        back = moved.to("cpu", non_blocking=True)
        run.under_test.synchronize()
        require(torch.equal(back, part), f"{4 * count} bytes back, non_blocking, are changed")
    there = here.to(run.device)
    strided = there.view(2048, 2048).t()
    require(torch.equal(strided.cpu(), here.view(2048, 2048).t()), "transposed, they are changed")


@contract(two_devices=True, no_cpu="there is one CPU")
def copies_between_devices(run: Run) -> None:
    """Copies between two devices keep values, dtypes and layouts, in both directions."""
    second = other_device(run)
    for places in ((run.device, second), (second, run.device)):
        _all_layouts(run, places)
        _all_kinds(run, places)
    _all_layouts(run, (second, second), (SMALL,))
    for count in (300_000, (1 << 20) + 1021):
        large = torch.arange(count, dtype=torch.int32)
        same(f"{4 * count} bytes", large.to(run.device).to(second), large)
    here = torch.arange(6.0).view(2, 3).t()
    across = here.to(run.device).to(second)
    same("device", across.device, second)
    same("strides", across.stride(), here.stride())
    same("values back", across.to(run.device, non_blocking=True), here)


@contract()
def gradients_follow_copies(run: Run) -> None:
    """Copies to the device and back are differentiable."""
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    torch.autograd.backward((leaf.to(run.device) * 3).cpu().sum())
    assert leaf.grad is not None
    same("device of grad", leaf.grad.device.type, "cpu")
    same("grad", leaf.grad, torch.tensor([3.0, 3.0]))


# Around powers of two, where blocks and pages end.
_ENDS = sorted(2**power + more for power in (0, 2, 4, 6, 9, 12, 14, 16, 18) for more in (-1, 0, 1))


@contract()
def every_byte_arrives_at_block_ends(run: Run) -> None:
    """Copies of sizes around powers of two, from odd places, arrive whole and touch no more."""
    for size in _ENDS:
        here = (torch.arange(size + 2) % 251).to(torch.uint8)
        there = here.to(run.device)
        part = there[1:-1]
        same(f"{size} bytes back", part.cpu(), here[1:-1])
        same(f"{size} bytes cloned", part.clone(), here[1:-1])
        target, expected = torch.full_like(there, 255), torch.full_like(here, 255)
        target[1:-1].copy_(part)
        expected[1:-1] = here[1:-1]
        same(f"{size} bytes copied between others", target, expected)
        target[1:-1].copy_(here[1:-1].flip(0))
        expected[1:-1] = here[1:-1].flip(0)
        same(f"{size} bytes of the CPU between others", target, expected)


@contract()
def copies_take_the_values_of_their_moment(run: Run) -> None:
    """A source that is written after a copy within the device does not change the copy."""
    for waits in (True, False):
        source = torch.arange(100_000.0).to(run.device)
        target = torch.zeros(100_000).to(run.device)
        target.copy_(source, non_blocking=not waits)
        source.fill_(-1)
        same(f"the copy, non_blocking={not waits}", target, torch.arange(100_000.0))
        taken = source.to("cpu", copy=True)
        source.fill_(-2)
        same("what the CPU took", taken, torch.full((100_000,), -1.0))


@contract()
def nothing_is_copied_where_there_is_nothing(run: Run) -> None:
    """Copies without elements keep shapes and dtypes, and raise nothing."""
    for shape in ((0,), (0, 3), (2, 0, 4)):
        here = torch.empty(shape, dtype=torch.int32)
        there = here.to(run.device)
        same(f"shape of {shape}", there.shape, here.shape)
        same(f"shape of {shape} back", there.cpu().shape, here.shape)
        same(f"dtype of {shape} converted", there.to(torch.float16).dtype, torch.float16)
        there.copy_(here)
        here.copy_(there.float())
        torch.empty_like(there).copy_(there)
        there.copy_(torch.tensor(1))
    refuses("three into none", lambda: torch.empty(0, device=run.device).copy_(torch.ones(3)))


@contract()
def copies_return_their_target(run: Run) -> None:
    """copy_() returns its target, counts its version up and keeps its place and its layout."""
    target = torch.zeros(3, 2).to(run.device).t()
    address, version, strides = target.data_ptr(), target._version, target.stride()
    for source in (torch.ones(2, 3), torch.ones(2, 3).to(run.device), torch.ones(3).double()):
        same("it returns its target", target.copy_(source) is target, True)
    same("data_ptr()", target.data_ptr(), address)
    same("stride()", target.stride(), strides)
    require(target._version >= version + 3, "the version was not counted up")


@contract()
def memory_formats_are_kept_or_made(run: Run) -> None:
    """clone(), to() and contiguous() keep or make the memory format that they are asked for."""
    rows = torch.arange(120.0).view(2, 3, 4, 5)
    images = rows.to(memory_format=torch.channels_last)
    for start in (
        rows,
        images,
        rows.permute(1, 0, 3, 2),
        rows[:, :, ::2],
        rows[:1].expand(4, 3, 4, 5),
    ):
        there = start.to(run.device, copy=True)
        same("to(device)", there.stride(), start.to("cpu", copy=True).stride())
        for form in (torch.preserve_format, torch.contiguous_format, torch.channels_last):
            expected = start.clone(memory_format=form)
            got = there.clone(memory_format=form)
            same(
                f"strides of clone() of {start.stride()} in {form}", got.stride(), expected.stride()
            )
            same(f"clone() of {start.stride()} in {form}", got, expected)
            empty = torch.empty_like(there, memory_format=form).stride()
            same(f"strides of empty_like() in {form}", empty,
                 torch.empty_like(start, memory_format=form).stride())  # fmt: skip
