# SPDX-License-Identifier: BSD-3-Clause
"""Graphs: work that is captured once and replayed with one launch, as in torch.cuda.

Capture is at the level of operators: a TorchDispatchMode hands each to csrc/runtime/graph.cpp,
which runs it to learn its shapes, writes it down, and at the end puts back what was written.
Differences from torch.cuda stand in docs/use/graphs.md.
"""

import gc
import os
import warnings
from collections.abc import Sequence
from traceback import walk_tb
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch
from torch import _tensor_str
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_npusim import _C
from torch_npusim._first_use import _lazy_init
from torch_npusim._names import device_type
from torch_npusim.npusim import _device, memory, streams
from torch_npusim.sim import races

__all__ = [
    "NPUSIMGraph",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
]

ErrorMode: TypeAlias = Literal["global", "thread_local", "relaxed"]
Pool: TypeAlias = "tuple[int, int] | NPUSIMGraph | memory.MemPool | None"


class _Capture(TorchDispatchMode):
    """Sends operators to the graph that is being captured."""

    def __init__(self, captured: _C._Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = captured

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is captured as it is: kernels of their own, and operators."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        overload = "" if func._overloadname == "default" else func._overloadname
        return self._graph.call(func._schema.name, overload, *args, **(kwargs or {}))


_entered: list[_Capture] = []


def _turn(captured: _C._Graph, on: bool) -> None:
    if on:
        _entered.append(_Capture(captured))
        _entered[-1].__enter__()  # type: ignore[no-untyped-call]
    else:
        _entered.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]


_C.set_capture_switch(_turn)


def is_current_stream_capturing() -> bool:
    """Returns whether what is launched on the current stream is captured now."""
    return _C.is_current_stream_capturing()


def graph_pool_handle() -> tuple[int, int]:
    """Returns a new pool's number, for the captures of graphs that are to share memory.

    Graphs may share a pool if they are replayed in the order of their captures, and never at the
    same time. The pool lives as long as a graph that has it.
    """
    _lazy_init()
    return _C.graph_pool_handle()


def _number(pool: Pool) -> tuple[int, int]:
    if pool is None:
        return (0, 0)
    if isinstance(pool, NPUSIMGraph):
        return pool.pool()
    if isinstance(pool, memory.MemPool):
        return pool.id
    return pool


class NPUSIMGraph:
    """Captured work; see graph for the usual way to capture.

    Args:
        keep_graph: Accepted as in torch.cuda; a graph of npusim has one form only.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        _lazy_init()
        self._graph = _C._Graph()
        self._debug = self._checks_inputs = False

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets later captures draw from `generator`, as from the device's default generator.

        Raises:
            RuntimeError: While this graph is being captured.
        """
        self._graph.register_generator(generator)

    def capture_begin(
        self,
        pool: Pool = None,
        capture_error_mode: ErrorMode = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begins to capture what is launched on the current stream.

        Args:
            pool: Where memory comes from; default: a pool of the graph's own.
            capture_error_mode: Which threads may not wait for devices meanwhile: any, "global";
                the one that captures, "thread_local"; none, but for the captured stream, "relaxed".
            check_input_liveness: Whether replay() raises if an input was freed since the capture.

        Raises:
            RuntimeError: On a default stream, while another capture lasts, or if the graph holds a
                capture already.
        """
        self._checks_inputs = check_input_liveness
        self._graph.capture_begin(_number(pool), capture_error_mode)

    def capture_end(self) -> None:
        """Ends the capture, on the stream on which it began.

        Raises:
            RuntimeError: If something was refused meanwhile, or work of another stream was not
                joined. The graph is empty then, and nothing of the capture is left.
        """
        self._graph.capture_end()
        if self._graph.size() == 0:
            graph = "CUDA Graph" if device_type() == "cuda" else "graph"
            warnings.warn(
                f"The {graph} is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )

    def instantiate(self) -> None:
        """Does nothing more: a capture can be replayed at once.

        Raises:
            RuntimeError: Without a capture.
        """
        if not self._graph.is_captured():
            raise RuntimeError("instantiate() was called on a graph without a capture")

    def replay(self) -> None:
        """Runs the captured work on the current stream, for the price of one launch.

        Raises:
            RuntimeError: Without a capture; with check_input_liveness, or where races are errors,
                if the memory of an input was freed since. The graph still has it here; a graph of
                CUDA would read others'.
        """
        checks = self._checks_inputs or races.get_race_detection() == "error"
        if checks and (freed := self._graph.freed_inputs()):
            raise RuntimeError(
                f"CUDA graph replay detected dead tensor(s): {freed}. Keep the inputs of a capture "
                f"alive as long as the graph is replayed."
            )
        self._graph.replay()

    def reset(self) -> None:
        """Drops the capture; its memory is given back once no tensor is in it."""
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """Returns the number of the pool that the capture allocates from."""
        return self._graph.pool()

    def enable_debug_mode(self) -> None:
        """Allows debug_dump()."""
        self._debug = True

    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Writes the graph to a file in the language of Graphviz.

        Raises:
            RuntimeError: Without enable_debug_mode(), or if the file cannot be written.
        """
        if not self._debug:
            raise RuntimeError("debug_dump() needs enable_debug_mode() before the capture")
        self._graph.write_dot(os.fspath(debug_path))


class graph:
    """Captures the work of a `with` block into a graph.

    Args:
        npusim_graph: Where it goes.
        pool: As in NPUSIMGraph.capture_begin().
        stream: On which it is captured; default: a stream of this class's own.
        capture_error_mode: As in NPUSIMGraph.capture_begin().
        check_input_liveness: As in NPUSIMGraph.capture_begin().
    """

    default_capture_stream: "streams.Stream | None" = None

    def __init__(
        self,
        npusim_graph: NPUSIMGraph,
        pool: Pool = None,
        stream: "streams.Stream | None" = None,
        capture_error_mode: ErrorMode = "global",
        check_input_liveness: bool = False,
    ) -> None:
        if not isinstance(npusim_graph, NPUSIMGraph):
            raise TypeError(f"graph: expected an NPUSIMGraph, got {type(npusim_graph).__name__}")
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = streams.Stream()
            stream = graph.default_capture_stream
        self._graph = npusim_graph
        self._begin = (pool, capture_error_mode, check_input_liveness)
        self._on_stream = streams.stream(stream)

    def __enter__(self) -> None:
        _device.synchronize()
        if torch.compiler.config.force_cudagraph_gc:  # TORCH_CUDAGRAPH_GC, as in torch.cuda
            gc.collect()
        memory.empty_cache()
        self._on_stream.__enter__()
        try:
            self._graph.capture_begin(*self._begin)
        except BaseException:
            self._on_stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._graph.capture_end()
        except RuntimeError:
            if error is None:
                raise
            # What was refused is on its way already, and says more.
        finally:
            self._on_stream.__exit__(kind, error, traceback)
        if any(f.f_code.co_filename == _tensor_str.__file__ for f, _ in walk_tb(traceback)):
            raise RuntimeError(
                "operation not permitted when stream is capturing: printing a tensor reads its "
                "values, and a captured tensor has none yet. Print it after a replay."
            ) from error


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool = None,
) -> Any:
    """Returns callables whose forward and backward passes are replayed graphs.

    Args:
        callables: A function or module, or a tuple of them in the order of their use.
        sample_args: Its positional tensors, or a tuple of such tuples; shapes and requires_grad are
            those of all later calls.
        num_warmup_iters: Passes before the capture.
        allow_unused_input: Whether an input may have no gradient.
        pool: As in NPUSIMGraph.capture_begin().

    Raises:
        RuntimeError: While autocast caches its casts, or for modules with hooks.
    """
    if torch.is_autocast_enabled("npusim") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching: pass "
            "cache_enabled=False to autocast"
        )
    several = isinstance(callables, tuple)
    functions = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    pool = pool if pool is not None else graph_pool_handle()
    made = _capture_all(functions, samples, num_warmup_iters, allow_unused_input, pool)
    return tuple(made) if several else made[0]


def _parameters(function: Any) -> tuple[torch.Tensor, ...]:
    return tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()


def _check(function: Any) -> None:
    if not isinstance(function, torch.nn.Module):
        return
    if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
        raise RuntimeError(
            "Modules must not have hooks registered at the time they are passed. However, "
            "registering hooks on modules after passing them through make_graphed_callables is "
            "allowed."
        )
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError("make_graphed_callables: a buffer of the module requires a gradient")


def _gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor | None],
    allow_unused: bool,
) -> tuple[torch.Tensor | None, ...]:
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if o.requires_grad]
    if not wanted or not pairs:
        return tuple(None for _ in inputs)
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=allow_unused
        )
    )
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)


def _capture_all(
    functions: Sequence[Any],
    samples: Sequence[tuple[torch.Tensor, ...]],
    warmups: int,
    allow_unused: bool,
    pool: Pool,
) -> list[Any]:
    inputs = []
    for function, sample in zip(functions, samples, strict=True):
        _check(function)
        flat, _ = tree_flatten(sample)
        if not all(isinstance(tensor, torch.Tensor) for tensor in flat):
            raise TypeError(
                "make_graphed_callables: sample_args may hold tensors only, in nested tuples"
            )
        inputs.append((*flat, *_parameters(function)))

    _device.synchronize()
    with streams.stream(streams.Stream()):
        for function, sample, of in zip(functions, samples, inputs, strict=True):
            for _ in range(warmups):
                flat, _ = tree_flatten(function(*sample))
                given: Sequence[torch.Tensor | None] = [
                    torch.empty_like(o) if o.requires_grad else None for o in flat
                ]
                _gradients(flat, of, given, allow_unused)
    _device.synchronize()

    forwards, outputs, shapes = [], [], []
    for function, sample in zip(functions, samples, strict=True):
        forward = NPUSIMGraph()
        with graph(forward, pool=pool):
            result = function(*sample)
        flat, shape = tree_flatten(result)
        forwards.append(forward)
        outputs.append(tuple(flat))
        shapes.append(shape)

    # Backward passes run in reverse, and share the pool in that order.
    backwards: list[NPUSIMGraph] = []
    given_to: list[Sequence[torch.Tensor | None]] = []
    found_in: list[tuple[torch.Tensor | None, ...]] = []
    for flat, of in zip(reversed(outputs), reversed(inputs), strict=True):
        given = tuple(torch.empty_like(o) if o.requires_grad else None for o in flat)
        backward = NPUSIMGraph()
        with graph(backward, pool=pool):
            found = _gradients(flat, of, given, allow_unused)
        backwards.insert(0, backward)
        given_to.insert(0, given)
        found_in.insert(0, found)

    return [
        _graphed(function, *rest)
        for function, *rest in zip(
            functions, forwards, backwards, inputs, outputs, given_to, found_in, shapes, strict=True
        )
    ]


def _graphed(
    function: Any,
    forward: NPUSIMGraph,
    backward: NPUSIMGraph,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    given: tuple[torch.Tensor | None, ...],
    found: tuple[torch.Tensor | None, ...],
    shape: Any,
) -> Any:
    parameters = _parameters(function)
    count = len(inputs) - len(parameters)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: torch.Tensor) -> Any:
            for static, argument in zip(inputs[:count], arguments, strict=False):
                if static.data_ptr() != argument.data_ptr():
                    static.copy_(argument)
            forward.replay()
            return tuple(output.detach() for output in outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            for static, gradient in zip(given, gradients, strict=True):
                if static is not None and static.data_ptr() != gradient.data_ptr():
                    static.copy_(gradient)
            backward.replay()
            return tuple(None if tensor is None else tensor.detach() for tensor in found)

    def call(*arguments: Any) -> Any:
        flat, _ = tree_flatten(arguments)
        results = Graphed.apply(*flat, *parameters)  # type: ignore[no-untyped-call]
        return tree_unflatten(results, shape)

    if not isinstance(function, torch.nn.Module):
        return call
    training, original = function.training, function.forward

    def forward_of_module(*arguments: Any) -> Any:
        # Captured in one mode; in the other the module runs as it was written.
        return call(*arguments) if function.training == training else original(*arguments)

    function.forward = forward_of_module
    return function
