# SPDX-License-Identifier: BSD-3-Clause
"""Triton's kernels on npusim: with TRITON_INTERPRET=1 a launch is one command on device memory.

Triton's interpreter copies every tensor to the host and back. Here its loads and stores go to the
device's memory, and a launch is a command like any other: on the current stream, with the
kernel's name, the bytes that its programs touched (each once) and the operations that they did.
Its memory must be memory of its arguments or of other tensors of the device.

Code enters if Triton's interpreter needs it to run on device memory.
"""

import functools
import inspect
import operator
import warnings
from types import SimpleNamespace
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim._names import is_npusim
from torch_npusim.triton_interpreter import launch as launches
from torch_npusim.triton_interpreter.bfloat16 import Bfloat16
from torch_npusim.triton_interpreter.builder import at_device
from torch_npusim.triton_interpreter.launch import Launch, Program

_WHY_NOT_TRACED = (
    "a Triton kernel runs in Triton's interpreter (TRITON_INTERPRET=1); npusim compiles no Triton"
)

# The parts of triton.runtime that are replaced.
_REPLACED = (
    "interpreter.GridExecutor",
    "interpreter.InterpretedFunction.run",
    "interpreter.ReduceOps.sum",
    "interpreter.ReduceOps.min_max",
    "interpreter.ScanOps.cumsum",
    "interpreter.ScanOps.cumprod",
    "autotuner.Autotuner._bench",
    "autotuner.Autotuner.check_disk_cache",
)

#: Names of the kernels that ran.
launched: set[str] = set()


def install() -> None:
    """Has Triton's interpreter run kernels with npusim tensors here; once, when it is imported.

    Warns, and changes nothing, where this release of Triton has another interpreter.
    """
    import triton
    from triton.runtime import autotuner, interpreter

    try:
        # While the interpreter is imported, triton.runtime lacks its name.
        own = SimpleNamespace(autotuner=autotuner, interpreter=interpreter)
        operator.attrgetter(*_REPLACED)(own)
    except AttributeError as missing:
        warnings.warn(
            f"npusim: kernels run in Triton {triton.__version__}'s own interpreter, without checks "
            f"and times ({missing}); use Triton 3.7 or newer",
            stacklevel=2,
        )
        return

    class Executor(interpreter.GridExecutor):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> None:
            names = inspect.getfullargspec(self.fn).args
            kwargs = {name: value for name, value in kwargs.items() if name in names}
            given = inspect.getcallargs(self.fn, *args, **kwargs)
            tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
            if not any(is_npusim(x.device) for x in tensors.values()):
                super().__call__(*args, **kwargs)
                return
            _launch(interpreter, self, given, tensors)

    interpreter.GridExecutor = Executor
    _do_not_trace(interpreter.InterpretedFunction.run)
    small = Bfloat16(interpreter)
    for kind, names in (
        (interpreter.ReduceOps, ("sum", "min_max")),
        (interpreter.ScanOps, ("cumsum", "cumprod")),
    ):
        for name in names:
            setattr(kind, name, small.reduction(getattr(kind, name)))
    _take_the_first_configuration(interpreter)


def _take_the_first_configuration(interpreter: Any) -> None:
    """Autotuning asks for a GPU's timer, and an interpreted kernel has none."""
    from triton.runtime import autotuner

    bench, check_disk_cache = autotuner.Autotuner._bench, autotuner.Autotuner.check_disk_cache

    def is_interpreted(tuner: Any) -> bool:
        kernel = tuner.fn
        while hasattr(kernel, "fn") and not isinstance(kernel, interpreter.InterpretedFunction):
            kernel = kernel.fn
        return isinstance(kernel, interpreter.InterpretedFunction)

    def tried(config: Any, call: Any, quantiles: Any = None) -> tuple[float, float, float]:
        if launches.trial is not None:
            launches.trial(str(config), call)
        return 0.0, 0.0, 0.0  # alike, so the first is the best

    @functools.wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if is_interpreted(self):
            self.__dict__["do_bench"] = functools.partial(tried, config)  # a cached property
        return bench(self, *args, config=config, **meta)

    @functools.wraps(check_disk_cache)
    def _check_disk_cache(self: Any, key: Any, configs: Any, benchmark: Any) -> bool:
        if not is_interpreted(self):
            return bool(check_disk_cache(self, key, configs, benchmark))
        benchmark()
        return False

    autotuner.Autotuner._bench = _bench
    autotuner.Autotuner.check_disk_cache = _check_disk_cache


def _do_not_trace(run: Any) -> None:
    """Does what torch.compiler.disable() does, whose import takes seconds."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # with all that it calls
    eval_frame.set_code_exec_strategy(run.__code__, strategy)
    run._torchdynamo_disable, run._torchdynamo_disable_msg = True, _WHY_NOT_TRACED


def _launch(
    interpreter: Any, executor: Any, given: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    devices = {x.device for x in tensors.values()}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(
            f"{executor.fn.__name__}: pointer arguments of one device needed: {places}"
        )
    device = devices.pop().index

    def converted(launch: Launch | None) -> dict[str, Any]:
        arguments = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in given.items()
        }
        if launch is not None:
            for name in tensors:
                arguments[name].handle.data[0] = launch.regions[name].first
        return arguments

    def body() -> tuple[float, float, list[tuple[int, int, bool]]]:
        for hook in executor.pre_run_hooks:
            hook(**given)
        scope = interpreter._patch_lang(executor.fn)
        builder = interpreter.interpreter_builder
        try:
            grid = executor.grid(converted(None)) if callable(executor.grid) else executor.grid
            grid = (*grid, 1, 1, 1)[:3]
            builder.set_grid_dim(*grid)
            programs = [
                (x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])
            ]

            def run(launch: Launch, program: Program) -> None:
                if launch.arguments is None:
                    launch.arguments = converted(launch)
                launch.program = program
                builder.set_grid_idx(*program)
                with at_device(interpreter, launch):
                    executor.fn(**launch.arguments)

            return launches.runner(programs, run, tensors, device).done()
        finally:
            scope.restore()

    launched.add(executor.fn.__name__)
    _C.launch_python(device, executor.fn.__name__, body)
