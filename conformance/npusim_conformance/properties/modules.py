# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn: each module of torch's database, in training and evaluation, against the CPU."""

import copy
import inspect
import io
import pickle
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import spread
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.inputs.variation import Variation
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Property,
    Run,
    in_profiles,
    require,
)
from npusim_conformance.verdict import Mismatch, NotApplicable

LOST_LAZY = (
    "torch's own Module.to() makes a plain Parameter of an UninitializedParameter where the data "
    "of a tensor cannot change to the device (contract:storage/data_can_change_device)"
)


@dataclass(frozen=True)
class Example:
    """A module on the CPU with an input; nobody writes to either, every call gets copies."""

    index: int
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    info: Any

    def module_on(self, device: torch.device) -> torch.nn.Module:
        """A copy of the module there. Raises where a lazy parameter is lost on the way."""
        module = copy.deepcopy(self.module)
        lazy = {name for name, one in _state(module).items() if torch.nn.parameter.is_lazy(one)}
        moved = module.to(device)
        if any(not torch.nn.parameter.is_lazy(_state(moved)[name]) for name in lazy):
            there = torch.empty(0, device=device)
            if not torch._has_compatible_shallow_copy_type(torch.empty(0), there):
                raise NotApplicable(LOST_LAZY)  # Module.to() itself gives the laziness up
            raise Mismatch("to(device) makes a plain Parameter of an UninitializedParameter")
        return moved

    def input_on(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of args and kwargs there, as they lie on the CPU."""
        moved: tuple[tuple[Any, ...], dict[str, Any]] = Transfer(device)((self.args, self.kwargs))
        return moved

    def run(self, device: torch.device) -> Any:
        """The result on `device`."""
        args, kwargs = self.input_on(device)
        return self.module_on(device)(*args, **kwargs)


def examples(run: Run, maximum: int | None) -> Iterator[Example]:
    """Modules and inputs of the case's subject, in training and in evaluation; spread evenly."""
    info = run.subject.info
    assert run.dtype is not None
    made = []
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for given in torch_testing.module_inputs(info, run.dtype, training, run.seed):
            made.append((training, given))
    for index in spread(len(made), maximum):
        training, given = made[index]
        built = copy.deepcopy(given.constructor_input)  # some of them keep what they are given
        torch.default_generator.manual_seed(run.seed)
        module = info.module_cls(*built.args, **built.kwargs).to(run.dtype).train(training)
        forward = given.forward_input
        yield Example(index, module, forward.args, forward.kwargs, info)


class ModuleProperty(Property):
    """A property that looks at one module with one input after the other."""

    kind = "module"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)
    examples_max: ClassVar[int | None] = None  # where more would say nothing new

    @abstractmethod
    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """Raises where `device` is wrong; also called with the CPU."""

    def check(self, run: Run) -> None:
        """Examines each example."""
        limits = [limit for limit in (self.examples_max, run.source.maximum) if limit is not None]
        for example in examples(run, min(limits, default=None)):

            def examine(device: torch.device, example: Example = example) -> None:
                self.examine(run, example, device)

            run.attempt(example.index, examine)
            if len(run.failures) >= FAILURES_MAX:
                return


class Forward(ModuleProperty):
    """The result of forward(), and the buffers after it, are the CPU's."""

    name = "forward"
    profiles = in_profiles(smoke=Dtypes.DEFAULT, standard=Dtypes.ALL, full=Dtypes.ALL)

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """Runs it there and here."""
        run.reseed()
        before = torch.get_rng_state()
        expected = _outcome(example, CPU)
        is_random = not torch.equal(before, torch.get_rng_state())
        run.reseed()
        got = _outcome(example, device)
        if example.info.is_lazy or (is_random and not run.under_test.expectations.cpu_generator):
            run.agreement.check_metadata(expected, got, device)
            return

        def recompute(vary: Variation) -> tuple[Any, dict[str, torch.Tensor]]:
            module, args, kwargs = _varied(example, vary)
            return module(*args, **kwargs), dict(module.named_buffers())

        run.agreement.check(expected[0], got[0], device, recompute=lambda vary: recompute(vary)[0])
        for name, value in expected[1].items():
            run.agreement.check(
                value,
                got[1].get(name),
                device,
                f"buffer {name} after forward()",
                recompute=lambda vary, name=name: recompute(vary)[1][name],  # type: ignore[misc]
            )


def _outcome(example: Example, device: torch.device) -> tuple[Any, dict[str, torch.Tensor]]:
    """The result, and the buffers after it."""
    module = example.module_on(device)
    args, kwargs = example.input_on(device)
    return module(*args, **kwargs), dict(module.named_buffers())


def _varied(example: Example, vary: Variation) -> tuple[torch.nn.Module, Any, Any]:
    """The module on the CPU and its input, all numbers varied."""
    module = copy.deepcopy(example.module)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = vary(tensor.data)
    args, kwargs = pytree.tree_map(vary, example.input_on(CPU))
    return module, args, kwargs


class Backward(ModuleProperty):
    """The gradients of all parameters and inputs are the CPU's."""

    name = "backward"
    profiles = in_profiles(smoke=Dtypes.DEFAULT, standard=Dtypes.DEFAULT, full=Dtypes.ALL)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """All but modules that have no parameters before forward()."""
        return "its parameters are made by forward()" if subject.info.is_lazy else ""

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """The same cotangents go back there and here."""
        run.reseed()
        before = torch.get_rng_state()
        expected = _gradients(example.module_on(CPU), *example.input_on(CPU))
        is_random = not torch.equal(before, torch.get_rng_state())
        if not expected:
            raise NotApplicable("no result depends on an input or a parameter")
        run.reseed()
        got = _gradients(example.module_on(device), *example.input_on(device))
        if is_random and not run.under_test.expectations.cpu_generator:
            run.agreement.check_metadata(expected, got, device, "gradient")
            return

        for name in [*expected, *got]:
            require(name in got, f"no gradient for {name}, on the CPU there is one")
            require(name in expected, f"a gradient for {name}, on the CPU there is none")

        def recompute(vary: Variation) -> Any:
            module, args, kwargs = _varied(example, vary)
            return _gradients(module, args, kwargs)

        run.agreement.check(expected, got, device, "gradient", recompute=recompute)


def _gradients(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    inputs = {f"input {n}": leaf for n, leaf in enumerate(tensors_of((args, kwargs)))}
    leaves = {**inputs, **dict(module.named_parameters())}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    outputs = [leaf for leaf in tensors_of(module(*args, **kwargs)) if leaf.requires_grad]
    if not leaves or not outputs:
        return {}
    cotangents = [_cotangent(output) for output in outputs]
    found = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
    named = zip(leaves, found, strict=True)
    return {name: grad for name, grad in named if grad is not None}


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    """Numbers between -1 and 1 that depend on the shape alone."""
    values = (torch.arange(output.numel()) * 37 % 65 - 32).view(output.shape) / 32
    return values.to(output.dtype).to(output.device)


class Move(ModuleProperty):
    """to(device) moves every parameter and buffer, and back they have the values they had."""

    name = "move"
    examples_max = 6

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """Whether to() keeps Parameter objects is the contract storage/data_can_change_device."""
        module = copy.deepcopy(example.module)
        values = {name: _value(tensor) for name, tensor in module.state_dict().items()}
        require(module.to(device) is module, "to() returned another module")
        for name, tensor in _state(module).items():
            require(tensor.device == device, f"{name} is on {tensor.device} after to({device})")
        module.to(CPU)
        for name, tensor in module.state_dict().items():
            same = values[name] is None or torch.equal(_present(values[name]), tensor)
            require(same, f"{name} has other values after going there and back")


def _present(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value


def _value(tensor: Any) -> torch.Tensor | None:
    """A copy, or None for what has no value: uninitialised parameters, extra state."""
    if not isinstance(tensor, torch.Tensor) or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.clone()


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class Copies(ModuleProperty):
    """A module that was deep-copied, pickled or loaded from a state_dict gives the same result."""

    name = "copies"
    examples_max = 6

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """All but modules that have no parameters before forward()."""
        return "its parameters are made by forward()" if subject.info.is_lazy else ""

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """Each copy against the module itself, on the same device, with the same seed."""
        module = example.module_on(device)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        loaded = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in loaded.parameters():
                parameter.zero_()
        loaded.load_state_dict(torch.load(file))
        copies = {"deepcopy": copy.deepcopy(module), "a state_dict": loaded}
        if not _holds_a_function(example.module):
            copies["pickle"] = pickle.loads(pickle.dumps(module))
        expected = self._result(run, module, example, device)
        for name, other in copies.items():
            got = self._result(run, other, example, device)
            run.agreement.check(expected, got, device, f"result of {name}")

    @staticmethod
    def _result(run: Run, module: torch.nn.Module, example: Example, device: torch.device) -> Any:
        args, kwargs = example.input_on(device)
        run.reseed()
        with torch.no_grad():
            return module(*args, **kwargs)


def _holds_a_function(module: torch.nn.Module) -> bool:
    try:
        pickle.dumps(module)
    except (pickle.PicklingError, AttributeError, TypeError):
        return True
    return False


class NonContiguous(ModuleProperty):
    """Inputs with gaps in memory give the result of contiguous ones, on the same device."""

    name = "noncontiguous"
    examples_max = 12

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """All but modules whose first forward() draws their parameters."""
        return "its parameters are made by forward()" if subject.info.is_lazy else ""

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """Forward and backward."""
        args, kwargs = example.input_on(device)
        if not any(tensor.dim() and tensor.numel() > 1 for tensor in tensors_of((args, kwargs))):
            raise NotApplicable("no input can have gaps")
        spaced_args, spaced_kwargs = pytree.tree_map(_with_gaps, (args, kwargs))
        run.reseed()
        expected = example.module_on(device)(*args, **kwargs)
        run.reseed()
        got = example.module_on(device)(*spaced_args, **spaced_kwargs)
        run.agreement.check(expected, got, device, "result for inputs with gaps")
        run.reseed()
        grads = _gradients(example.module_on(device), args, kwargs)
        run.reseed()
        spaced = _gradients(example.module_on(device), spaced_args, spaced_kwargs)
        run.agreement.check(grads, spaced, device, "gradient for inputs with gaps")


def _with_gaps(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.numel() < 2:
        return leaf
    wide = torch.zeros((*leaf.shape, 2), dtype=leaf.dtype, device=leaf.device)
    spaced = wide[..., 0].copy_(leaf.detach())
    return spaced.detach().requires_grad_(leaf.requires_grad)


class Construction(ModuleProperty):
    """device= and dtype= of the constructor make parameters and buffers there."""

    name = "construction"
    examples_max = 6

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Modules that take device=."""
        taken = inspect.signature(subject.info.module_cls).parameters
        return "" if "device" in taken and "dtype" in taken else "it takes no device="

    def examine(self, run: Run, example: Example, device: torch.device) -> None:
        """By keyword and by default device, for each set of arguments."""
        given = torch_testing.module_inputs(
            example.info, run.dtype or torch.float32, example.module.training, run.seed
        )[0].constructor_input
        cls = example.info.module_cls
        made = cls(*given.args, **{**given.kwargs, "device": device, "dtype": run.dtype})
        with device:
            kwargs = {name: value for name, value in given.kwargs.items() if name != "device"}
            by_context = cls(*given.args, **kwargs)
        for how, module in (("device=", made), ("`with device`", by_context)):
            for name, tensor in _state(module).items():
                require(tensor.device == device, f"{name} by {how} is on {tensor.device}")
        for name, parameter in made.named_parameters():
            require(parameter.dtype == run.dtype, f"{name} is {parameter.dtype}")


class Errors(Property):
    """Inputs that a module refuses on the CPU are refused on the device with the same exception."""

    name = "errors"
    kind = "module"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Modules with error inputs in torch's database."""
        return "" if subject.info.module_error_inputs_func else "torch's database has no errors"

    def check(self, run: Run) -> None:
        """Each error input."""
        info = run.subject.info
        given = torch_testing.module_error_inputs(info, _dtype(run), True, run.seed)
        for index, error in enumerate(given):

            def examine(device: torch.device, error: Any = error) -> None:
                _must_raise(info, error, _dtype(run), device)

            run.attempt(index, examine)


def _dtype(run: Run) -> torch.dtype:
    return run.dtype or torch.float32


def _must_raise(info: Any, error: Any, dtype: torch.dtype, device: torch.device) -> None:
    given = error.module_error_input
    made, forward = given.constructor_input, given.forward_input
    try:
        module = info.module_cls(*made.args, **made.kwargs).to(device).to(dtype)
        if forward is not None:
            args, kwargs = Transfer(device)((forward.args, forward.kwargs))
            module(*args, **kwargs)
    except error.error_type as raised:
        if not re.search(error.error_regex, str(raised)):
            raise Mismatch(
                f"raised {str(raised)[:100]!r}, expected {error.error_regex[:100]!r}"
            ) from raised
        return
    except Exception as raised:
        expected = error.error_type.__name__
        raise Mismatch(
            f"raised {type(raised).__name__}({str(raised)[:100]!r}), expected {expected}"
        ) from raised
    raise Mismatch(f"raised nothing, expected {error.error_type.__name__}")


PROPERTIES = [Forward, Backward, Move, Copies, NonContiguous, Construction, Errors]
