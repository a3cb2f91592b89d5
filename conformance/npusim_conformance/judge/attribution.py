# SPDX-License-Identifier: BSD-3-Clause
"""Which aten overload is at fault when a sample fails.

The failing check is repeated once under a dispatch mode that sees every overload below autograd and
composites. An overload that raises what the check raised is the culprit; for a wrong result it is
the first whose result, for the very same arguments, is not the CPU's. So a kernel that breaks forty
composites gives one cause.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.variation import Recompute, Variation
from npusim_conformance.judge import plain_python
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.verdict import Mismatch

SECONDS_MAX = 5.0  # then calls are no longer compared
BYTES_MAX = 1 << 28  # of a storage; calls with a larger one are not compared

# Their results are, in whole or in part, uninitialised.
_UNDEFINED = frozenset(
    """empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_
    _efficientzerotensor set_ _resize_output_""".split()
)


@dataclass(frozen=True)
class Culprit:
    """`fault` is "raises", "wrong result" or "result does not alias"; `script` may be empty."""

    overload: str
    fault: str
    script: str


def find(
    examine: Callable[[torch.device], None],
    device: torch.device,
    import_name: str = "",
    bitwise: bool = False,
) -> Culprit | None:
    """Repeats a check that failed on `device`; None where no single overload can be blamed."""
    watch = _Watch(device, import_name, bitwise)
    try:
        with watch:
            examine(device)
    except Exception as error:
        for culprit, raised in watch.raised:
            if raised is error or (type(raised) is type(error) and str(raised) == str(error)):
                return culprit
    return watch.wrong


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of what looks at calls that concern the device."""

    def __init__(self, device: torch.device, import_name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.import_name = import_name

    def concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a tensor lies on the device, or is to."""
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                    return False
                if leaf.device.type == self.device.type:
                    return True
            elif isinstance(leaf, torch.device) and leaf.type == self.device.type:
                return True
        return False

    def script(self, func: Any, call_arguments: Any) -> str:
        """The call in plain Python, or nothing where it cannot be written down."""

        def write() -> str:
            if call_arguments is None:
                raise plain_python.Unwritable("arguments that cannot be copied to the CPU")
            namespace, name = func.name().split("::")
            call = f"torch.ops.{namespace}.{name if '.' in name else name + '.default'}"
            arguments, named = call_arguments
            return plain_python.script(call, arguments, named, self.device, self.import_name)

        return plain_python.described(write)


class _Watch(Observer):  # type: ignore[no-untyped-call]
    """Looks for a call that raises, or whose result is not the CPU's."""

    def __init__(self, device: torch.device, import_name: str, bitwise: bool) -> None:
        super().__init__(device, import_name)
        self.bitwise = bitwise
        self.wrong: Culprit | None = None
        self.raised: list[tuple[Culprit, Exception]] = []
        self._ends = time.monotonic() + SECONDS_MAX

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.concerns(args, kwargs) or self.wrong or time.monotonic() > self._ends:
            return func(*args, **kwargs)
        host = to_host((args, kwargs))
        before = to_host((args, kwargs), marks_host=True)  # the call may change `host`
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.raised.append((self._culprit(func, "raises", before), error))
            raise
        if host is not None and _is_defined(func):
            fault = self._fault(func, host, (args, kwargs), result)
            if fault:
                root = self._root(func, (args, kwargs)) if fault == "wrong result" else None
                self.wrong = root or self._culprit(func, fault, before)
        return result

    def _root(self, func: Any, own: Any) -> Culprit | None:
        """as_strided(), by which torch makes views, where it is what gives the wrong one."""
        returns, as_strided = func._schema.returns, torch.ops.aten.as_strided.default
        base = next((leaf for leaf in own[0] if isinstance(leaf, torch.Tensor)), None)
        is_view = len(returns) == 1 and returns[0].alias_info and not returns[0].alias_info.is_write
        if base is None or not is_view or func is as_strided:
            return None
        host = to_host(own)
        if host is None:
            return None
        expected, here = func(*host[0], **host[1]), host[0][own[0].index(base)]
        if not isinstance(expected, torch.Tensor) or expected.dtype != here.dtype:
            return None
        lies = (list(expected.shape), list(expected.stride()))
        offset = int(expected.storage_offset())
        offsets: list[tuple[int, ...]] = [(offset,)]
        if offset == here.storage_offset():
            offsets.append(())
        for more in offsets:
            try:
                got = base.as_strided(*lies, *more)
                Agreement(self.bitwise).check(expected, got, got.device)
            except Mismatch:
                return self._culprit(as_strided, "wrong result", ((here, *lies, *more), {}))
            except Exception:
                return None
        return None

    def _culprit(self, func: Any, fault: str, call_arguments: Any) -> Culprit:
        return Culprit(func.name(), fault, self.script(func, call_arguments))

    def _fault(self, func: Any, host: Any, own: Any, result: Any) -> str:
        untouched = pytree.tree_map(_copied, host)
        try:
            expected = func(*host[0], **host[1])
        except Exception:
            return ""
        if _breaks_alias(func, own, result):
            return "result does not alias"

        def recompute(vary: Variation) -> Any:
            args, kwargs = pytree.tree_map(vary, untouched)
            return func(*args, **kwargs)

        try:
            self._same(func, expected, result, recompute)
            self._same(func, host, own, None)
        except Mismatch:
            return "wrong result"
        return ""

    def _same(self, func: Any, expected: Any, got: Any, recompute: Recompute | None) -> None:
        ones, others = pytree.tree_leaves(expected), pytree.tree_leaves(got)
        for number, (one, other) in enumerate(zip(ones, others, strict=True)):
            if not isinstance(one, torch.Tensor):
                continue

            def leaf(vary: Variation, number: int = number) -> Any:
                assert recompute is not None
                return pytree.tree_leaves(recompute(vary))[number]

            pointwise = torch.Tag.pointwise in func.tags
            agreement = Agreement(self.bitwise, elementwise=pointwise)
            agreement.check(one, other, other.device, recompute=leaf if recompute else None)


def _is_defined(func: Any) -> bool:
    name = func.name().split("::")[1].split(".")[0]
    return name not in _UNDEFINED and torch.Tag.nondeterministic_seeded not in func.tags


def _breaks_alias(func: Any, own: Any, result: Any) -> bool:
    returns = func._schema.returns
    if not any(item.alias_info is not None and not item.alias_info.is_write for item in returns):
        return False
    tensors = [leaf for leaf in pytree.tree_leaves(own) if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    every = (*tensors, *results)
    if any(tensor.layout != torch.strided or not _has_storage(tensor) for tensor in every):
        return False
    storages = {tensor.untyped_storage()._cdata for tensor in tensors}
    return any(found.untyped_storage()._cdata not in storages for found in results)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor has memory that can be asked for; an opaque one need not."""
    try:
        tensor.untyped_storage()
    except NotImplementedError:
        return False
    return True


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def to_host(tree: Any, marks_host: bool = False) -> Any:
    """Copies on the CPU that lie as the originals do, or None where something cannot be."""
    leaves, structure = pytree.tree_flatten(tree)
    storages: dict[int, torch.UntypedStorage] = {}
    mixed = marks_host and any(
        isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in leaves
    )

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return CPU
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = _tensorto_host(leaf.detach(), storages)
        return plain_python.HostTensor(moved) if mixed and leaf.device.type == "cpu" else moved

    try:
        return pytree.tree_unflatten([copy(leaf) for leaf in leaves], structure)
    except Exception:  # the copy itself is what does not work
        return None


def _tensorto_host(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    special = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested
    if special or tensor.is_conj() or tensor.is_neg() or not _has_storage(tensor):
        return tensor.to("cpu", copy=True)
    storage = tensor.untyped_storage()
    if storage.nbytes() > BYTES_MAX:
        raise MemoryError("several copies might not fit beside it")
    key = storage._cdata
    if key not in storages:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        storages[key] = whole.to("cpu", copy=True).untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
