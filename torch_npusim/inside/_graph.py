# SPDX-License-Identifier: BSD-3-Clause
"""inside.graph() and inside.retained(): the autograd graph of a tensor, and what it keeps alive."""

import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_npusim._blame import file_line
from torch_npusim._text import format_bytes
from torch_npusim.inside._report import Drawing, Picture, Report, wrapped
from torch_npusim.sim import clock

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_LINE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.M)


@dataclass(frozen=True)
class Saved:
    """A tensor that a node keeps for the backward pass.

    Attributes:
        name: In the formula of the gradient, for example "self".
        shape: Of the tensor.
        dtype: Of the tensor.
        device: Of the tensor.
        bytes: Of its elements.
        storage: Address of its storage: equal ones are counted once.
        storage_bytes: Length of that storage.
        version_saved: Of the tensor when it was saved.
        version: Of the tensor now; another one makes the backward pass fail.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    bytes: int
    storage: int
    storage_bytes: int
    version_saved: int
    version: int

    @property
    def is_stale(self) -> bool:
        """Whether it was changed in place after it was saved."""
        return self.version != self.version_saved


@dataclass
class Node:
    """A node of the graph.

    Attributes:
        number: In this report; the root is 0.
        name: For example "MulBackward0".
        edges: (number of the following node, number of its input) per input of the operator;
            None where nothing needs a gradient.
        saved: Tensors that it keeps.
        freed: Whether a backward pass has freed what it kept.
        leaf: Name of the tensor whose `.grad` it adds to; "" of a node that is no AccumulateGrad.
        hooks: Number of hooks on the tensor of a leaf; those of other nodes cannot be asked.
        device: Of the gradient that it takes.
        thread: The thread that will run it: "caller", or a device's. Derived.
        sequence: The engine prefers higher numbers among nodes that are ready.
        line: "file:line" that made it, where anomaly detection was on; else "".
        order: Place in the executed order; None before a backward pass.
        began_ns: The host's virtual time when it began, from the begin of the pass.
        ran_on: Name of the thread that ran it; "" before a backward pass.
        stream: Number of the stream that it ran on: that of its forward operator. Torch tells it
            only while the node runs; None before a backward pass and for a node of the CPU.
        adds: Dtype and shape of the gradient that a leaf gets, as "float32[3]"; "" of others.
    """

    number: int
    name: str
    edges: list[tuple[int, int] | None]
    saved: list[Saved]
    freed: bool
    leaf: str
    hooks: int
    device: str
    thread: str
    sequence: int
    line: str
    order: int | None = None
    began_ns: int = 0
    ran_on: str = ""
    stream: int | None = None
    adds: str = ""


@dataclass(repr=False)  # Report has one
class GraphReport(Report):
    """An autograd graph.

    Attributes:
        nodes: In the order in which they were reached from the root, number 0 first.
        stale: (node, saved tensor) that in-place operations changed after they were saved.
    """

    nodes: list[Node] = field(default_factory=list)
    title = "graph"

    @property
    def stale(self) -> list[tuple[Node, Saved]]:
        """The saved tensors that make the backward pass fail, with their nodes."""
        return [(node, one) for node in self.nodes for one in node.saved if one.is_stale]

    @property
    def leaves(self) -> dict[str, int]:
        """How many edges lead to each leaf."""
        counted = {node.number: 0 for node in self.nodes if node.leaf}
        for node in self.nodes:
            for edge in node.edges:
                if edge is not None and edge[0] in counted:
                    counted[edge[0]] += 1
        return {self.nodes[number].leaf: count for number, count in counted.items()}

    @property
    def executed(self) -> list[Node]:
        """The nodes that a backward pass ran, in its order."""
        ran = [node for node in self.nodes if node.order is not None]
        return sorted(ran, key=lambda node: node.order or 0)

    def text(self) -> str:
        """Returns a line per node, with its edges and what it keeps."""
        lines = []
        for node in self.nodes:
            lines += _text_of(node)
        if self.executed:
            lines.append("executed: " + " ".join(str(node.number) for node in self.executed))
            lines = [*lines[:-1], *wrapped(lines[-1], "")]
        for node, one in self.stale:
            told = (
                f"stale: {one.name!r} of node {node.number} {node.name} was saved at version "
                f"{one.version_saved} and is at version {one.version}: an in-place operation "
                "changed it, and backward() will refuse"
            )
            lines += wrapped(told, "")
        return "\n".join(lines)

    def picture(self) -> Picture:
        """Returns the graph as a drawing: gradients flow downward."""
        depth = {0: 0}
        for node in _topological(self.nodes):
            for edge in node.edges:
                if edge is not None:
                    depth[edge[0]] = max(depth.get(edge[0], 0), depth[node.number] + 1)
        drawing = Drawing()
        places: dict[int, tuple[float, float]] = {}
        rows: dict[int, list[Node]] = {}
        for node in self.nodes:
            rows.setdefault(depth[node.number], []).append(node)
        for row, nodes in rows.items():
            for column, node in enumerate(nodes):
                places[node.number] = (10 + column * 216.0, 10 + row * 74.0)
        for node in self.nodes:
            x, y = places[node.number]
            for edge in node.edges:
                if edge is not None:
                    to = places[edge[0]]
                    drawing.arrow(x + 100, y + 44, to[0] + 100, to[1] - 1)
        for node in self.nodes:
            x, y = places[node.number]
            stale = any(one.is_stale for one in node.saved)
            fill = "#ffdcd8" if stale else "#dafbe1" if node.leaf else "#ddf4ff"
            kept = sum(one.bytes for one in node.saved)
            drawing.box(x, y, 200, 44, fill=fill, tip="\n".join(_text_of(node)))
            drawing.words(x + 100, y + 18, f"{node.number} {node.leaf or node.name}"[:30],
                          anchor="middle")  # fmt: skip
            second = "gradient of a leaf" if node.leaf else f"keeps {format_bytes(kept)}"
            drawing.words(x + 100, y + 35, second, size=11, anchor="middle", colour="#59636e")
        return drawing.svg("autograd graph: gradients flow from the top to the leaves")


def _topological(nodes: list[Node]) -> list[Node]:
    waiting = {node.number: 0 for node in nodes}
    for node in nodes:
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] += 1
    ready, order = [nodes[0]] if nodes else [], []
    while ready:
        node = ready.pop()
        order.append(node)
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] -= 1
                if not waiting[edge[0]]:
                    ready.append(nodes[edge[0]])
    return order


def _text_of(node: Node) -> list[str]:
    edges = ", ".join(
        "none" if e is None else f"{e[0]}" + f".{e[1]}" * (e[1] > 0) for e in node.edges
    )
    told = f"{node.number} {node.name}"
    told += f" of {node.leaf}: {node.adds}" if node.leaf else f" -> {edges}"
    told += f"; {node.device}, thread: {node.ran_on or node.thread}"
    if node.stream is not None:
        told += f", stream {node.stream}"
    if node.hooks:
        told += f"; {node.hooks} hook{'s' if node.hooks > 1 else ''}"
    if node.order is not None:
        told += f"; ran as number {node.order + 1}, at {node.began_ns} ns"
    if node.line:
        told += f"; made at {node.line}"
    lines = wrapped(told, "")
    if node.freed:
        lines.append("    freed: what it kept is gone; another backward() needs retain_graph=True")
    for one in node.saved:
        kind = str(one.dtype).removeprefix("torch.")
        told = (
            f"keeps {one.name}: {kind}{list(one.shape)} {one.device}, {one.bytes} bytes, version "
            f"{one.version_saved}"
        )
        told += f", now {one.version}" if one.is_stale else ""
        lines += wrapped(told, "    ")
    return lines


def _names_of_leaves(variables: dict[str, Any], model: torch.nn.Module | None) -> dict[int, str]:
    """Names by the tensors' id(): the caller's variables, then a model's parameters."""
    known = {id(v): name for name, v in variables.items() if isinstance(v, torch.Tensor)}
    if model is not None:
        known |= {id(parameter): name for name, parameter in model.named_parameters()}
    return known


def graph(
    tensor: torch.Tensor,
    model: torch.nn.Module | None = None,
    *,
    backward: bool = False,
    retain_graph: bool = True,
) -> GraphReport:
    """Shows the autograd graph that leads to a tensor.

    Args:
        tensor: With a graph; it needs one element where `backward` is set.
        model: Gives leaves the names of its parameters. Other leaves take the names of the
            caller's variables, or "leaf 1" and so on.
        backward: Runs `tensor.backward()` and reports the order of the nodes.
        retain_graph: For that backward pass.

    Returns:
        The report; `print()` shows it.

    Raises:
        ValueError: If the tensor has no graph.
    """
    if tensor.grad_fn is None:
        raise ValueError("graph(): the tensor has no graph; requires_grad of its inputs says why")
    known = _names_of_leaves(sys._getframe(1).f_locals, model)
    nodes, found = _walked(tensor.grad_fn, known)
    report = GraphReport(nodes)
    if backward:
        _run(tensor, nodes, found, retain_graph)
        fresh, _ = _walked(tensor.grad_fn, known)
        for node, now in zip(nodes, fresh, strict=True):
            node.freed = now.freed
    return report


def _walked(root: Any, known: Mapping[int, str]) -> tuple[list[Node], list[Any]]:
    numbers = {root: 0}
    found = [root]
    for node in found:  # grows
        for following, _ in node.next_functions:
            if following is not None and following not in numbers:
                numbers[following] = len(found)
                found.append(following)
    nodes = []
    leaves = 0
    for number, node in enumerate(found):
        edges = [None if n is None else (numbers[n], i) for n, i in node.next_functions]
        saved, freed = _saved_by(node)
        variable = getattr(node, "variable", None)
        leaf = adds = ""
        if isinstance(variable, torch.Tensor):
            leaves += 1
            adds = f"{str(variable.dtype).removeprefix('torch.')}{list(variable.shape)}"
            leaf = known.get(id(variable), f"leaf {leaves}")
        device = _device_of(node, variable)
        on_device = device is not None and device.type not in ("cpu", "meta")
        trace = "".join(getattr(node, "metadata", {}).get("traceback_", []))
        places = [m for m in _LINE.finditer(trace) if "/torch/" not in m["file"]]
        nodes.append(
            Node(
                number,
                node.name().rpartition("::")[2],
                edges,
                saved,
                freed,
                leaf,
                _hooks_of(variable),
                str(device) if device is not None else "?",
                f"of {device}" if on_device else "caller",
                node._sequence_nr() if hasattr(node, "_sequence_nr") else 0,
                file_line(places[-1]["file"], int(places[-1]["line"])) if places else "",
                adds=adds,
            )
        )
    return nodes, found


def _device_of(node: Any, variable: Any) -> torch.device | None:
    if isinstance(variable, torch.Tensor):
        return variable.device
    metadata = getattr(node, "_input_metadata", None)
    try:
        return metadata[0].device if metadata else None
    except RuntimeError:
        return None


def _hooks_of(variable: Any) -> int:
    of_tensor = getattr(variable, "_backward_hooks", None) or {}
    after = getattr(variable, "_post_accumulate_grad_hooks", None) or {}
    return len(of_tensor) + len(after)


def _saved_by(node: Any) -> tuple[list[Saved], bool]:
    saved: list[Saved] = []
    freed = False
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        plain = name.removeprefix("_raw_saved_")
        version = None
        try:
            if _packed(getattr(node, name)):
                continue
            # A Function in Python has `saved_tensors` instead, all of them at once.
            of_python = isinstance(node, torch.autograd.function.BackwardCFunction)
            values = node.saved_tensors if of_python else getattr(node, f"_saved_{plain}")
        except RuntimeError as problem:
            if not (found := _VERSIONS.search(str(problem))):
                freed = True  # the only other reason to refuse
                continue
            version = int(found[1]), int(found[2])
            raw = getattr(node, name)
            values = raw.data if not isinstance(raw, tuple | list) else [one.data for one in raw]
        for one in values if isinstance(values, tuple | list) else (values,):
            if isinstance(one, torch.Tensor):
                saved.append(_saved(plain, one, version))
    return saved, freed


def _packed(raw: Any) -> bool:
    """Returns whether a hook keeps something else than tensors, as a checkpoint's does.

    Asking such a node for its tensors would run the forward pass again.
    """
    several = raw if isinstance(raw, tuple | list) else (raw,)
    return any(
        getattr(one, "unpack_hook", None) is not None and not isinstance(one.data, torch.Tensor)
        for one in several
    )


def _saved(name: str, tensor: torch.Tensor, versions: tuple[int, int] | None) -> Saved:
    """Describes a saved tensor; `versions` are those of now and then, where they differ."""
    now = then = tensor._version
    if versions is not None and versions[0] == now:  # of several, the others are as they were
        now, then = versions
    plain = tensor.layout == torch.strided and not tensor.is_nested
    storage = tensor.untyped_storage() if plain else None
    return Saved(
        name,
        tuple(tensor.shape) if not tensor.is_nested else (),
        tensor.dtype,
        str(tensor.device),
        tensor.numel() * tensor.element_size(),
        storage.data_ptr() if storage is not None else id(tensor),
        storage.nbytes() if storage is not None else tensor.numel() * tensor.element_size(),
        then,
        now,
    )


def _run(tensor: torch.Tensor, nodes: list[Node], found: list[Any], retain: bool) -> None:
    order: list[tuple[int, int, str, int | None]] = []
    begin = clock.host_time_ns()

    def noting(number: int) -> Any:
        def note(*_: Any) -> None:
            began, thread = clock.host_time_ns() - begin, threading.current_thread().name
            order.append((number, began, thread, _stream_of(nodes[number].device)))

        return note

    handles = [node.register_prehook(noting(number)) for number, node in enumerate(found)]
    try:
        tensor.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    caller = threading.current_thread().name
    for place, (number, began, thread, stream) in enumerate(order):
        node = nodes[number]
        node.order, node.began_ns, node.stream = place, began, stream
        node.ran_on = "caller" if thread == caller else f"of {node.device}"


def _stream_of(device: str) -> int | None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or device.partition(":")[0] != accelerator.type:
        return None
    return torch.accelerator.current_stream(device).stream_id


@dataclass(frozen=True)
class Retained:
    """A storage that a graph keeps.

    Attributes:
        bytes: Its length.
        device: Where it is.
        by: (node, name of the saved tensor) that keep it.
        leaf: Name of the leaf whose storage it is: it would live without the graph; else "".
        line: "file:line" that made the first such node, where anomaly detection was on; else "".
    """

    bytes: int
    device: str
    by: tuple[tuple[str, str], ...]
    leaf: str
    line: str


@dataclass(repr=False)  # Report has one
class RetainedReport(Report):
    """Storages that a graph keeps alive.

    Attributes:
        storages: The largest first.
    """

    storages: list[Retained] = field(default_factory=list)
    title = "retained"

    @property
    def bytes(self) -> int:
        """Bytes that live because of the graph: storages of leaves are not counted."""
        return sum(one.bytes for one in self.storages if not one.leaf)

    def text(self) -> str:
        """Returns a line per storage."""
        lines = [f"the graph keeps {format_bytes(self.bytes)} that no leaf has"]
        for one in self.storages:
            by = ", ".join(f"{name!r} of {node}" for node, name in one.by)
            told = f"{format_bytes(one.bytes)} on {one.device}: saved as {by}"
            told += f"; storage of leaf {one.leaf.removeprefix('leaf ')}" if one.leaf else ""
            told += f"; made at {one.line}" if one.line else ""
            lines += wrapped(told, "  ")
        if self.storages and not any(one.line for one in self.storages):
            lines.append(
                "  a forward pass in torch.autograd.detect_anomaly(False) notes their lines"
            )
        return "\n".join(lines)


def retained(tensor: torch.Tensor, model: torch.nn.Module | None = None) -> RetainedReport:
    """Says what memory the graph of a tensor keeps alive, and for which node.

    The Python line that made a node is known where the forward pass ran in
    `torch.autograd.detect_anomaly(check_nan=False)`.

    Args:
        tensor: With a graph.
        model: Gives leaves the names of its parameters.

    Returns:
        The report; `print()` shows it.

    Raises:
        ValueError: If the tensor has no graph.
    """
    if tensor.grad_fn is None:
        raise ValueError("retained(): the tensor has no graph; it keeps nothing")
    known = _names_of_leaves(sys._getframe(1).f_locals, model)
    nodes, found = _walked(tensor.grad_fn, known)
    leaves = {
        node.variable.untyped_storage().data_ptr(): nodes[number].leaf
        for number, node in enumerate(found)
        if nodes[number].leaf and node.variable.layout == torch.strided
    }
    kept: dict[tuple[str, int], list[tuple[Node, Saved]]] = {}
    for node in nodes:
        for one in node.saved:
            kept.setdefault((one.device, one.storage), []).append((node, one))
    storages = [
        Retained(
            holders[0][1].storage_bytes,
            holders[0][1].device,
            tuple((f"{node.number} {node.name}", one.name) for node, one in holders),
            leaves.get(place[1], ""),
            holders[0][0].line,
        )
        for place, holders in kept.items()
    ]
    return RetainedReport(sorted(storages, key=lambda one: -one.bytes))
