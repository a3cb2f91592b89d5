# SPDX-License-Identifier: BSD-3-Clause
"""Storages: their size, address and identity, and tensors that are made to look at them."""

from collections.abc import Callable
from functools import partial
from itertools import product

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.properties.base import Run, require


@contract()
def addresses_are_not_null(run: Run) -> None:
    """data_ptr() is not 0, and moves with the storage offset."""
    tensor = on(run.device, 1, 2, 3, 4)
    require(tensor.data_ptr() != 0, "data_ptr() is 0")
    same("data_ptr() of [2:]", tensor[2:].data_ptr(), tensor.data_ptr() + 8)
    same("the storage's data_ptr()", tensor[2:].untyped_storage().data_ptr(), tensor.data_ptr())
    same("data_ptr() without elements", torch.empty(0, device=run.device).data_ptr(), 0)


@contract()
def what_is_no_view_is_refused(run: Run) -> None:
    """view() of a shape that no strides give raises, and reshape() copies there."""
    base = torch.arange(12.0).view(3, 4)
    there = base.to(run.device)
    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "a transposed tensor": lambda whole: whole.t(),
        "a slice": lambda whole: whole[:, :2],
        "an expanded row": lambda whole: whole[:1].expand(3, 4),
    }
    for name, part in parts.items():
        view = part(there)
        refuses(f"view(-1) of {name}", partial(view.view, -1))
        same(f"reshape(-1) of {name}", view.reshape(-1), part(base).reshape(-1))


def _keep_their_format(run: Run, calls: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> None:
    images = torch.arange(240.0).view(2, 3, 5, 8).to(memory_format=torch.channels_last)
    for name, call in calls.items():
        expected, got = call(images), call(images.to(run.device))
        same(f"strides of {name}", got.stride(), expected.stride())
        same(f"shape of {name}", got.shape, expected.shape)


@contract()
def elementwise_results_keep_channels_last(run: Run) -> None:
    """Elementwise results of tensors in channels_last lie in channels_last."""
    _keep_their_format(
        run,
        {
            "relu()": torch.relu,
            "a sum": lambda images: images + images,
            "a product with a number": lambda images: images * 2,
            "a sum with a row": lambda images: images + images[:, :, :1, :1],
            "exp()": torch.exp,
        },
    )


@contract()
def convolutions_keep_channels_last(run: Run) -> None:
    """Convolutions of images in channels_last give results in channels_last."""
    weight, conv2d = torch.ones(4, 3, 2, 2), torch.nn.functional.conv2d
    _keep_their_format(run, {"conv2d()": lambda images: conv2d(images, weight.to(images.device))})


@contract()
def poolings_keep_channels_last(run: Run) -> None:
    """Poolings of images in channels_last give results in channels_last."""
    functions = torch.nn.functional
    _keep_their_format(
        run,
        {
            "max_pool2d()": lambda images: functions.max_pool2d(images, 2),
            "avg_pool2d()": lambda images: functions.avg_pool2d(images, 2),
        },
    )


@contract()
def a_column_hides_no_channels_last(run: Run) -> None:
    """Images of one column whose channels are last give the values and gradients of rows."""
    function = torch.nn.functional
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "batch_norm()": lambda x: function.batch_norm(x, None, None, training=True),
        "group_norm()": lambda x: function.group_norm(x, 2),
        "max_pool2d()": lambda x: function.max_pool2d(x, (2, 1), 1),
        "avg_pool2d()": lambda x: function.avg_pool2d(x, (2, 1), 1),
        "conv2d()": lambda x: function.conv2d(x, torch.ones(3, 4, 2, 1, device=x.device)),
        "interpolate()": lambda x: function.interpolate(x, scale_factor=(2, 1)),
    }
    if run.device.type == "cpu":
        del calls["batch_norm()"]  # its gradient is wrong there
    sequences = torch.arange(40.0).sin().view(2, 5, 4)
    for name, call in calls.items():
        expected: list[torch.Tensor] = []
        for is_hidden in (False, True):
            x = sequences.to(run.device).requires_grad_()
            images = x.transpose(1, 2).unsqueeze(-1)  # the column's stride is 1
            y = call(images if is_hidden else images.contiguous())
            weights = torch.arange(float(y.numel())).cos().view(y.shape)
            (gradient,) = torch.autograd.grad((y * weights.to(run.device)).sum(), x)
            got = [y.detach().cpu(), gradient.cpu()]
            expected = expected or got
            for what, one, other in zip(("values", "gradient"), got, expected, strict=True):
                require(torch.allclose(one, other, 1e-3, 1e-4), f"{what} of {name} are others")


@contract()
def as_strided_begins_where_the_tensor_does(run: Run) -> None:
    """as_strided() without an offset begins at the tensor's own, and with one at the storage's."""
    part = torch.arange(12.0).view(3, 4).to(run.device)[1:]
    same("without an offset", part.as_strided((3,), (2,)), torch.tensor([4.0, 6.0, 8.0]))
    same("with an offset", part.as_strided((3,), (2,), 1), torch.tensor([1.0, 3.0, 5.0]))


@contract()
def sizes_in_bytes(run: Run) -> None:
    """A storage's nbytes() are the tensor's, whatever its dtype; the device is its own."""
    for dtype in (torch.float32, torch.uint8, torch.int64, torch.complex64, torch.bool):
        tensor = torch.zeros(3, 5, dtype=dtype).to(run.device)
        storage = tensor.untyped_storage()
        same(f"nbytes() for {dtype}", storage.nbytes(), 15 * dtype.itemsize)
        same(f"device for {dtype}", storage.device, run.device)


@contract()
def views_share_it(run: Run) -> None:
    """Views look at one storage, so each sees what is written through another."""
    base = torch.zeros(4, 6).to(run.device)
    views = {
        "view": base.view(24),
        "transpose": base.t(),
        "slice": base[1:3, ::2],
        "select": base[2],
        "expand": base[:, :1].expand(4, 6),
        "as_strided": base.as_strided((3,), (7,), 1),
        "diagonal": base.diagonal(),
        "detach": base.detach(),
        "unsqueeze": base.unsqueeze(0),
    }
    address = base.untyped_storage().data_ptr()
    for name, view in views.items():
        same(f"storage of {name}", view.untyped_storage().data_ptr(), address)
    base.fill_(5)
    for name, view in views.items():
        same(f"{name} after fill_()", view, torch.full(view.shape, 5.0))
    views["slice"].fill_(1)
    expected = torch.full((4, 6), 5.0)
    expected[1:3, ::2] = 1
    same("the base after a write to a slice", base, expected)


@contract()
def writes_land_where_a_view_lies(run: Run) -> None:
    """A write to a view that starts at an odd element reaches its elements only, in every dtype."""
    for dtype in (torch.bool, torch.uint8, torch.float16, torch.float32, torch.complex64):
        for offset in (1, 2, 3):
            here = torch.zeros(9, dtype=dtype)
            there = here.to(run.device)
            for base in (here, there):
                base[offset : offset + 5].fill_(1)
                base[offset + 1].zero_()
                base[offset : offset + 2].logical_not_()
            same(f"{dtype} from element {offset}", there, here)


@contract()
def writes_keep_to_the_gaps(run: Run) -> None:
    """A write to columns, rows or every second element of a matrix leaves the rest."""
    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "[:, 1:3]": lambda base: base[:, 1:3],
        "[1:, ::2]": lambda base: base[1:, ::2],
        ".t()[1:3]": lambda base: base.t()[1:3],
    }
    writes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "fill_()": lambda view: view.fill_(1),
        "zero_()": torch.Tensor.zero_,
        "copy_()": lambda view: view.copy_(torch.ones(view.shape, device=view.device)),
    }
    for (name, part), (written, write) in product(parts.items(), writes.items()):
        here = torch.full((4, 5), 7.0)
        there = here.to(run.device)
        for base in (here, there):
            write(part(base))
        same(f"the base after {written} of {name}", there, here)


@contract()
def complex_views_share_it(run: Run) -> None:
    """.real and .imag are views: writes show in the base."""
    base = torch.tensor([1 + 2j, 3 + 4j]).to(run.device)
    base.real.fill_(7)
    same("after a write to .real", base, torch.tensor([7 + 2j, 7 + 4j]))
    base.imag.fill_(0)
    same("after a write to .imag", base, torch.tensor([7 + 0j, 7 + 0j]))


@contract()
def pairs_of_complex_numbers_share_it(run: Run) -> None:
    """view_as_real() is a view: writes show in the base."""
    base = torch.tensor([1 + 2j, 3 + 4j]).to(run.device)
    torch.view_as_real(base)[1, 1] = 9
    same("after a write to view_as_real()", base, torch.tensor([1 + 2j, 3 + 9j]))


@contract()
def complex_views_of_pairs_share_it(run: Run) -> None:
    """view_as_complex() is a view: writes show in the base."""
    pairs = torch.zeros(2, 2).to(run.device)
    torch.view_as_complex(pairs)[0].fill_(1 + 2j)
    same("after a write to view_as_complex()", pairs, torch.tensor([[1.0, 2.0], [0.0, 0.0]]))


@contract()
def dtype_views_share_it(run: Run) -> None:
    """Tensor.view(dtype) looks at the same bytes."""
    base = on(run.device, 1.0, -2.0)
    bits = base.view(torch.int32)
    same("bits", bits, torch.tensor([1.0, -2.0]).view(torch.int32))
    bits[0] = 0x40400000
    same("after a write to the bits", base, torch.tensor([3.0, -2.0]))
    same("bytes", base.view(torch.uint8).shape, torch.Size([8]))


@contract()
def set_takes_a_tensor(run: Run) -> None:
    """Tensor.set_(tensor) makes both look at one storage."""
    source, tensor = on(run.device, 1, 2, 3, 4), torch.empty(0, device=run.device)
    returned = tensor.set_(source)  # type: ignore[call-overload]
    same("it returns itself", returned is tensor, True)
    tensor[0] = 9
    same("the source", source, torch.tensor([9.0, 2.0, 3.0, 4.0]))


@contract()
def set_takes_a_view(run: Run) -> None:
    """Tensor.set_(view) has the view's offset and strides."""
    source = torch.arange(12.0).view(3, 4).to(run.device)
    part = source.t()[1:3]
    tensor = torch.empty(0, device=run.device)
    tensor.set_(part)  # type: ignore[call-overload]
    same("storage offset", tensor.storage_offset(), part.storage_offset())
    same("strides", tensor.stride(), part.stride())
    same("values", tensor, torch.arange(12.0).view(3, 4).t()[1:3])


@contract()
def set_takes_all_of_a_storage(run: Run) -> None:
    """Tensor.set_(storage) has as many elements as the storage has room for."""
    source = on(run.device, 1, 2, 3)
    for dtype in (torch.float32, torch.uint8):
        tensor = torch.empty(0, dtype=dtype, device=run.device)
        tensor.set_(source.untyped_storage())
        same(f"shape for {dtype}", tensor.shape, torch.Size([12 // dtype.itemsize]))
    same("values", tensor, torch.tensor([1.0, 2.0, 3.0]).view(torch.uint8))


@contract()
def is_set_to_sees_it(run: Run) -> None:
    """Tensor.is_set_to() is True for a tensor that set_() made of another."""
    source, tensor = on(run.device, 1, 2, 3), torch.empty(0, device=run.device)
    tensor.set_(source)  # type: ignore[call-overload]
    same("is_set_to() of what set_() took", source.is_set_to(tensor), True)


@contract()
def is_set_to_tells_others_apart(run: Run) -> None:
    """Tensor.is_set_to() is False for a part and for a copy."""
    source, tensor = on(run.device, 1, 2, 3), torch.empty(0, device=run.device)
    tensor.set_(source)  # type: ignore[call-overload]
    same("is_set_to() of a part", source.is_set_to(tensor[1:]), False)
    same("is_set_to() of a copy", source.is_set_to(source.clone()), False)


@contract()
def set_takes_a_storage(run: Run) -> None:
    """Tensor.set_(storage, offset, size, stride) looks at a part of it."""
    source = on(run.device, 0, 1, 2, 3, 4, 5)
    tensor = torch.empty(0, device=run.device)
    tensor.set_(source.untyped_storage(), 1, (2, 2), (2, 1))
    same("its values", tensor, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    same("offset", tensor.storage_offset(), 1)
    tensor[0, 0] = -1
    same("the source", source, torch.tensor([0.0, -1.0, 2.0, 3.0, 4.0, 5.0]))


@contract()
def resize_keeps_values(run: Run) -> None:
    """Tensor.resize_() shrinks in place and grows back, and keeps values and memory."""
    tensor = on(run.device, 1, 2, 3)
    address = tensor.data_ptr()
    tensor.resize_(2)
    same("shrunk", tensor, torch.tensor([1.0, 2.0]))
    tensor.resize_(3)
    same("grown back", tensor, torch.tensor([1.0, 2.0, 3.0]))
    tensor.resize_(3, 1)
    same("of another shape", tensor, torch.tensor([[1.0], [2.0], [3.0]]))
    tensor.resize_(0)
    same("elements", tensor.numel(), 0)
    same("the address", tensor.untyped_storage().data_ptr(), address)
    same("nbytes()", tensor.untyped_storage().nbytes(), 12)


@contract()
def resize_to_the_same_size_changes_nothing(run: Run) -> None:
    """Tensor.resize_() to the size that a tensor has leaves its strides, offset and values."""
    there = torch.arange(12.0).view(3, 4).to(run.device).t()[1:]
    same("it returns itself", there.resize_(3, 3) is there, True)
    same("stride()", there.stride(), (1, 4))
    same("storage_offset()", there.storage_offset(), 1)
    same("values", there, torch.arange(12.0).view(3, 4).t()[1:])


@contract()
def resize_grows(run: Run) -> None:
    """Tensor.resize_() grows beyond the memory and keeps the leading values."""
    tensor = on(run.device, 1, 2, 3)
    tensor.resize_(1000)
    same("leading values after growth", tensor[:3], torch.tensor([1.0, 2.0, 3.0]))
    require(tensor.untyped_storage().nbytes() >= 4000, "the storage is too small")


@contract()
def resize_gives_memory_to_what_has_none(run: Run) -> None:
    """Tensor.resize_() of a tensor without elements gives it memory of its own."""
    tensor, other = torch.empty(0, device=run.device), torch.empty(0, device=run.device)
    tensor.resize_(2, 3).fill_(5)
    other.resize_(7).fill_(6)
    same("values", tensor, torch.full((2, 3), 5.0))
    same("the other's", other, torch.full((7,), 6.0))
    same("device", tensor.untyped_storage().device, run.device)


@contract()
def resize_keeps_the_offset(run: Run) -> None:
    """Tensor.resize_() of a view keeps its place in the memory."""
    whole = on(run.device, 1, 2, 3, 4, 5, 6)
    part = whole[2:].resize_(2)
    same("storage offset", part.storage_offset(), 2)
    same("values", part, torch.tensor([3.0, 4.0]))
    part.fill_(9)
    same("the whole after a write", whole, torch.tensor([1.0, 2, 9, 9, 5, 6]))


@contract()
def resize_takes_a_memory_format(run: Run) -> None:
    """Tensor.resize_(memory_format=) gives the strides of that format."""
    tensor = torch.empty(0, device=run.device)
    tensor.resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    same("strides", tensor.stride(), (60, 1, 15, 3))


@contract(two_devices=True, no_cpu="there is one CPU")
def views_share_it_on_every_device(run: Run) -> None:
    """On the second device, too, writes to a view are seen in its base."""
    base = torch.zeros(2, 4).to(other_device(run))
    views = (base.view(4, 2), base.t(), base[:, 1:], base.as_strided((2,), (3,), 1), base.view(8))
    for number, view in enumerate(views):
        view.flatten()  # a copy, which shares nothing
        view[-1:].fill_(number + 1)
        expected = torch.zeros(2, 4)
        here = (expected.view(4, 2), expected.t(), expected[:, 1:],
                expected.as_strided((2,), (3,), 1), expected.view(8))  # fmt: skip
        for before in range(number + 1):
            here[before][-1:].fill_(before + 1)
        same(f"the base after a write to view {number}", base, expected)


@contract()
def storage_can_be_resized(run: Run) -> None:
    """A storage can be emptied with resize_(0) and filled again, as FSDP does."""
    tensor = on(run.device, 1, 2, 3, 4)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    same("nbytes() when emptied", storage.nbytes(), 0)
    same("the tensor's shape", tensor.shape, torch.Size([4]))
    storage.resize_(16)
    tensor.copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))
    same("values when filled again", tensor, torch.tensor([5.0, 6.0, 7.0, 8.0]))
    storage.resize_(32)
    same("values when grown", tensor, torch.tensor([5.0, 6.0, 7.0, 8.0]))


def _listed(storage: torch.UntypedStorage) -> list[int]:
    listed: list[int] = storage.cpu().tolist()  # type: ignore[no-untyped-call]
    return listed


@contract()
def storages_can_be_made_and_copied(run: Run) -> None:
    """torch.UntypedStorage(n, device=) works; clone(), copy_(), cpu() and to the device copy."""
    storage = torch.UntypedStorage(8, device=run.device)  # type: ignore[no-untyped-call]
    same("device", storage.device, run.device)
    same("nbytes()", storage.nbytes(), 8)
    storage.copy_(torch.tensor([1, 2, 3, 4, 5, 6, 7, 8], dtype=torch.uint8).untyped_storage())
    same("values", _listed(storage), [1, 2, 3, 4, 5, 6, 7, 8])
    other = storage.clone()  # type: ignore[no-untyped-call]
    require(other.data_ptr() != storage.data_ptr(), "clone() has the same address")
    storage.copy_(torch.zeros(8, dtype=torch.uint8).untyped_storage())
    same("the clone after a write to the original", _listed(other), [1, 2, 3, 4, 5, 6, 7, 8])


@contract()
def data_can_be_exchanged(run: Run) -> None:
    """`tensor.data = other` gives a tensor other values and keeps the object."""
    tensor = on(run.device, 1, 2).requires_grad_()
    tensor.data = on(run.device, 3, 4, 5)
    same("values", tensor.detach(), torch.tensor([3.0, 4.0, 5.0]))
    same("requires_grad", tensor.requires_grad, True)
    tensor.data.mul_(2)
    same("values after a write to .data", tensor.detach(), torch.tensor([6.0, 8.0, 10.0]))


@contract(no_cpu="it is on the CPU already")
def data_can_change_device(run: Run) -> None:
    """`tensor.data = tensor.to(device)` moves a CPU tensor, as Module.to() does."""
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    tensor.data = tensor.data.to(run.device)
    same("device", tensor.device, run.device)
    same("values", tensor.detach(), torch.tensor([1.0, 2.0]))


@contract()
def strided_memory(run: Run) -> None:
    """empty_strided() has the strides asked for; memory formats are kept by copies."""
    tensor = torch.empty_strided((2, 3), (1, 4), device=run.device)
    same("stride()", tensor.stride(), (1, 4))
    same("nbytes()", tensor.untyped_storage().nbytes(), 4 * (1 + 1 * 1 + 2 * 4))
    images = torch.ones(2, 3, 4, 5).to(run.device).to(memory_format=torch.channels_last)
    same("channels_last", images.is_contiguous(memory_format=torch.channels_last), True)
    same("clone()", images.clone().is_contiguous(memory_format=torch.channels_last), True)
    moved = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).to(run.device)
    same("to(device)", moved.is_contiguous(memory_format=torch.channels_last), True)


@contract()
def volumes_have_a_memory_format(run: Run) -> None:
    """Tensors of five dimensions lie in channels_last_3d where that is asked for or kept."""
    form = torch.channels_last_3d
    values = torch.arange(120.0).view(1, 2, 3, 4, 5)
    expected = values.to(memory_format=form).stride()
    there = values.to(run.device).to(memory_format=form)
    empty = torch.empty(values.shape, device=run.device, memory_format=form)
    for name, tensor in (
        ("empty()", empty),
        ("to()", there),
        ("clone()", there.clone()),
        ("contiguous()", values.to(run.device).contiguous(memory_format=form)),
        ("to(device)", values.to(memory_format=form).to(run.device)),
        ("empty_like()", torch.empty_like(there)),
    ):
        same(f"strides of {name}", tensor.stride(), expected)
    same("values", there, values)


@contract()
def an_operand_may_be_the_target(run: Run) -> None:
    """x.add_(x) and out=x read their operands before they write."""
    values, expected = on(run.device, 1, 2, 3), torch.tensor([1.0, 2.0, 3.0])
    same("x.add_(x)", values.add_(values), expected.add_(expected))
    same("x.mul_(x)", values.mul_(values), expected.mul_(expected))
    other, one = on(run.device, 3, 4, 5), torch.tensor([3.0, 4.0, 5.0])
    same("mul(x, y, out=x)", torch.mul(values, other, out=values), expected.mul_(one))
    same("sub(y, x, out=x)", torch.sub(other, values, out=values), one - expected)


@contract()
def in_place_keeps_the_address(run: Run) -> None:
    """In-place operators keep a tensor's storage, and count its version up."""
    tensor = on(run.device, 1, 2, 3)
    address, version = tensor.data_ptr(), tensor._version
    tensor.add_(1).mul_(2)
    tensor[0] = 0
    same("data_ptr()", tensor.data_ptr(), address)
    require(tensor._version > version, "the version was not counted up")
    same("values", tensor, torch.tensor([0.0, 6.0, 8.0]))


@contract()
def writes_over_themselves_are_refused(run: Run) -> None:
    """In-place operators and out= refuse a target whose elements share memory."""
    there = torch.arange(4.0).to(run.device)
    row = there[:1].expand(3)
    for what, call in {
        "add_() into an expanded tensor": lambda: row.add_(1),
        "mul_() into an expanded tensor": lambda: row.mul_(2),
        "out= an expanded tensor": lambda: torch.add(there[:3], 1, out=row),
    }.items():
        refuses(what, call)
    same("the memory", there, torch.arange(4.0))


@contract()
def new_tensors_have_the_format_asked_for(run: Run) -> None:
    """empty() and its kin have the CPU's strides for each format, with sizes of 0 and 1 too."""
    images = ((2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (0, 3, 4, 5), (1, 1, 1, 1))
    volumes = ((2, 3, 4, 5, 6), (1, 1, 2, 3, 2), (2, 0, 1, 1, 3))
    for shape in images + volumes:
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        for form in (torch.contiguous_format, last):
            what = f"of {shape} in {str(form).removeprefix('torch.')}"
            expected = _in_format(shape, form, CPU)
            for name, made in _in_format(shape, form, run.device).items():
                same(f"strides of {name} {what}", made.stride(), expected[name].stride())


def _in_format(
    shape: tuple[int, ...], form: torch.memory_format, device: torch.device
) -> dict[str, torch.Tensor]:
    """Tensors of a shape that were asked for in a memory format, by the call that made them."""
    plain = torch.zeros(shape).to(device)
    return {
        "empty()": torch.empty(shape, device=device, memory_format=form),
        "empty_like()": torch.empty_like(plain, memory_format=form),
        "zeros_like()": torch.zeros_like(plain, memory_format=form),
        "to()": plain.to(memory_format=form),
        "clone()": plain.clone(memory_format=form),
        "contiguous()": plain.contiguous(memory_format=form),
        "a sum": plain.contiguous(memory_format=form) + 1,
    }
