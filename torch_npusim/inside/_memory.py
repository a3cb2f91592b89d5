# SPDX-License-Identifier: BSD-3-Clause
"""inside.memory(): storages as strips of bytes, with the tensors that lie on them."""

from dataclasses import dataclass, field
from typing import Any

import torch

from torch_npusim._names import is_npusim
from torch_npusim._text import format_bytes
from torch_npusim.inside._report import Drawing, Picture, Report, wrapped

SECTOR = 32  # bytes that a chip's memory moves at once
_STRIP = 64  # columns of a strip of text
_MOST_ELEMENTS = 1 << 22
_COLOURS = ("#0969da", "#1a7f37", "#bf8700", "#8250df", "#c01525", "#59636e")


@dataclass(frozen=True)
class View:
    """One tensor on a storage.

    Attributes:
        name: As given, or "a", "b" and so on.
        shape: In elements.
        strides: In elements.
        offset: Of its first element, in elements.
        item_bytes: Of one element.
        contiguous: Whether it is.
        aligned: The largest power of two, at most 512, that its first element's address divides by.
        row_sectors: Sectors of 32 bytes that a read along its last dimension touches.
        row_least: As few as that many bytes could lie in.
        column_sectors: Likewise along the last but one; 0 of fewer than two dimensions.
        touched: Bytes of its storage that its elements have, as ranges (first, after the last).
        overlaps: Whether two of its elements share bytes.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    item_bytes: int
    contiguous: bool
    aligned: int
    row_sectors: int
    row_least: int
    column_sectors: int
    touched: tuple[tuple[int, int], ...]
    overlaps: bool

    @property
    def bytes(self) -> int:
        """Bytes of its elements, each byte counted once."""
        return sum(last - first for first, last in self.touched)


@dataclass(frozen=True)
class Block:
    """The allocator's block around a storage.

    Attributes:
        address: Where it begins.
        bytes: Its size.
        requested: As asked for.
        padding: Bytes of the block that nobody asked for.
        segment_bytes: Size of the segment, which the allocator bought of the device.
        segment_blocks: (bytes, state) of all blocks of the segment, in order.
        place: Of this block among them.
        pool: "small" or "large".
    """

    address: int
    bytes: int
    requested: int
    padding: int
    segment_bytes: int
    segment_blocks: tuple[tuple[int, str], ...]
    place: int
    pool: str


@dataclass
class Strip:
    """A storage, and the tensors on it.

    Attributes:
        device: For example "npusim:0".
        address: Where it begins.
        bytes: Its length.
        views: The tensors.
        block: Of the caching allocator; None of a device without one.
    """

    device: str
    address: int
    bytes: int
    views: list[View]
    block: Block | None

    def aliases(self) -> list[tuple[str, str]]:
        """Returns pairs of tensors that share a byte."""
        pairs = []
        for i, one in enumerate(self.views):
            for other in self.views[i + 1 :]:
                if any(a < d and c < b for a, b in one.touched for c, d in other.touched):
                    pairs.append((one.name, other.name))
        return pairs


@dataclass(repr=False)  # Report has one
class MemoryReport(Report):
    """Storages of some tensors.

    Attributes:
        storages: In the order in which the tensors name them.
    """

    storages: list[Strip] = field(default_factory=list)
    title = "memory"

    def text(self) -> str:
        """Returns a strip per storage."""
        lines: list[str] = []
        for strip in self.storages:
            lines += _text_of(strip)
        return "\n".join(lines)

    def picture(self) -> Picture:
        """Returns the strips as a drawing."""
        drawing = Drawing()
        y = 10.0
        for strip in self.storages:
            y = _draw(drawing, strip, y)
        return drawing.svg("storages as strips of bytes, with the tensors on them")


def memory(*tensors: torch.Tensor, **named: torch.Tensor) -> MemoryReport:
    """Shows where tensors lie: storages, views, aliases, sectors, the allocator's block.

    Args:
        *tensors: Tensors of any device; they are called a, b, c in their order.
        **named: Tensors with names of their own.

    Returns:
        The report; `print()` shows it.

    Raises:
        ValueError: If a tensor has no storage of plain bytes, as a sparse one, or no elements.
    """
    together = {chr(ord("a") + i): tensor for i, tensor in enumerate(tensors)} | named
    strips: dict[tuple[str, int], Strip] = {}
    for name, tensor in together.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.numel() == 0:
            raise ValueError(f"memory(): {name} is no dense tensor with elements")
        storage = tensor.untyped_storage()
        key = (str(tensor.device), storage.data_ptr())
        if key not in strips:
            block = _block_of(storage, tensor.device) if is_npusim(tensor.device) else None
            strips[key] = Strip(key[0], key[1], storage.nbytes(), [], block)
        strips[key].views.append(_view(name, tensor))
    return MemoryReport(list(strips.values()))


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """Returns the element offsets of a tensor, in its own order, as a tensor of the CPU."""
    found = torch.tensor([offset])
    for size, stride in zip(shape, strides, strict=True):
        found = (found[:, None] + torch.arange(size) * stride).reshape(-1)
    return found


def _sectors(address: int, offsets: torch.Tensor, item: int) -> int:
    first = (address + offsets * item) // SECTOR
    last = (address + offsets * item + item - 1) // SECTOR
    return len(torch.unique(torch.cat([first, last])))


def _view(name: str, tensor: torch.Tensor) -> View:
    if tensor.numel() > _MOST_ELEMENTS:
        raise ValueError(f"memory(): {name} has more than {_MOST_ELEMENTS} elements to draw")
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    item, offset = tensor.element_size(), int(tensor.storage_offset())
    base = tensor.untyped_storage().data_ptr()
    offsets = _offsets(shape, strides, offset)
    at = torch.unique(offsets)
    breaks = torch.nonzero(at[1:] - at[:-1] != 1).flatten().tolist()
    firsts = [0, *(place + 1 for place in breaks)]
    lasts = [*breaks, len(at) - 1]
    touched = tuple(
        (int(at[first]) * item, (int(at[last]) + 1) * item)
        for first, last in zip(firsts, lasts, strict=True)
    )
    row = _offsets(shape[-1:], strides[-1:], offset)
    column = _offsets(shape[-2:-1], strides[-2:-1], offset)
    address = base + offset * item
    return View(
        name,
        shape,
        strides,
        offset,
        item,
        tensor.is_contiguous(),
        min(address & -address, 512) if address else 512,
        _sectors(base, row, item),
        -(-len(row) * item // SECTOR),
        _sectors(base, column, item) if len(shape) > 1 else 0,
        touched,
        len(at) != tensor.numel(),
    )


def _block_of(storage: Any, device: torch.device) -> Block | None:
    address = storage.data_ptr()
    for segment in torch.npusim.memory_snapshot():  # type: ignore[attr-defined]
        if segment["device"] != (device.index or 0):
            continue
        for place, block in enumerate(segment["blocks"]):
            begin = block["address"]
            if begin <= address < begin + block["size"]:
                requested = block.get("requested_size", block["size"])
                return Block(
                    begin,
                    block["size"],
                    requested,
                    block["size"] - requested,
                    segment["total_size"],
                    tuple((one["size"], one["state"]) for one in segment["blocks"]),
                    place,
                    segment["segment_type"],
                )
    return None


def _text_of(strip: Strip) -> list[str]:
    lines = [f"storage of {strip.bytes} bytes at {strip.address:#x} on {strip.device}"]
    per = 1
    while strip.bytes > per * _STRIP:
        per *= 2
    columns = -(-strip.bytes // per)
    label = max(len(view.name) for view in strip.views)
    marks = "".join("|" if i * per % SECTOR == 0 else " " for i in range(columns))
    lines.append(f"  {'':{label}}  {marks}  | begins {SECTOR} bytes" if per <= SECTOR else "")
    for view in strip.views:
        cells = ["."] * columns
        for first, last in view.touched:
            for i in range(first // per, -(-last // per)):
                cells[i] = "#"
        lines.append(f"  {view.name:{label}}  {''.join(cells)}  # a column is {per} B")
    for view in strip.views:
        told = (
            f"{view.name}: shape {list(view.shape)}, strides {list(view.strides)}, offset "
            f"{view.offset}, {view.item_bytes} bytes each; "
            f"{'contiguous' if view.contiguous else 'not contiguous'}; begins on a boundary of "
            f"{view.aligned} bytes; sectors of {SECTOR} bytes that a read touches: "
            f"{view.row_sectors} along the last dimension (the least: {view.row_least})"
        )
        if view.column_sectors:
            told += f", {view.column_sectors} along the last but one"
        if view.overlaps:
            told += "; elements share bytes"
        lines += wrapped(told, "  ")
    for one, other in strip.aliases():
        lines.append(f"  {one} and {other} share bytes")
    if strip.block is not None:
        lines += _text_of_block(strip.block)
    return [line for line in lines if line]


def _text_of_block(block: Block) -> list[str]:
    lines = [
        f"  block of {block.bytes} bytes, {block.requested} requested, {block.padding} of padding",
        f"  segment of {format_bytes(block.segment_bytes)}, {block.pool} pool, "
        f"{len(block.segment_blocks)} blocks; this is number {block.place + 1}",
    ]
    around = list(enumerate(block.segment_blocks))[max(0, block.place - 2) : block.place + 3]
    told = ", ".join(
        f"{'this' if i == block.place else state.removesuffix('_allocated')} {size} B"
        for i, (size, state) in around
    )
    return [*lines, *wrapped(f"neighbours: {told}", "  ")]


def _draw(drawing: Drawing, strip: Strip, y: float) -> float:
    wide = 640.0
    drawing.words(10, y + 12, f"storage of {strip.bytes} bytes on {strip.device}")
    y += 22
    scale = wide / strip.bytes
    drawing.box(10, y, wide, 18, fill="#f6f8fa")
    if strip.bytes <= 64 * SECTOR:
        for at in range(SECTOR, strip.bytes, SECTOR):
            drawing.box(10 + at * scale, y, 0.6, 18, fill="#d1d9e0", line="none")
    y += 24
    for number, view in enumerate(strip.views):
        colour = _COLOURS[number % len(_COLOURS)]
        drawing.box(10, y, wide, 14, fill="#ffffff", line="#d1d9e0")
        for first, last in view.touched[:2000]:
            drawing.box(
                10 + first * scale, y, max(0.8, (last - first) * scale), 14, fill=colour,
                line="none", tip=f"{view.name}: bytes {first} to {last}",
            )  # fmt: skip
        told = f"{view.name} {list(view.shape)} strides {list(view.strides)} offset {view.offset}"
        drawing.words(10, y + 28, told, colour=colour)
        y += 36
    if strip.block is not None:
        x = 10.0
        whole = strip.block.segment_bytes
        for place, (size, state) in enumerate(strip.block.segment_blocks):
            fill = "#0969da" if place == strip.block.place else "#9aa4af"
            fill = fill if state != "inactive" else "#ffffff"
            drawing.box(x, y, size * wide / whole, 14, fill=fill, tip=f"{size} bytes, {state}")
            x += size * wide / whole
        told = f"its segment: {format_bytes(whole)}, {len(strip.block.segment_blocks)} blocks"
        drawing.words(10, y + 28, told)
        y += 36
    return y + 14
