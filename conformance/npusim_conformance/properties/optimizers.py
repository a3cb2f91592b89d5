# SPDX-License-Identifier: BSD-3-Clause
"""torch.optim: each optimizer of torch's database in each of its configurations."""

import copy
import io
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles, require
from npusim_conformance.verdict import Mismatch, NotApplicable

_STEPS = 3
_SHAPES = ((4, 3), (2, 5), (6, 1))  # all of them matrices, since Muon takes nothing else
_ONLY_ELSEWHERE = re.compile(r"supported (native )?devices|capturable=True")


class Training:
    """Parameters that start, and gradients that come, the same on every device."""

    def __init__(
        self, run: Run, kwargs: dict[str, Any], device: torch.device, sparse: bool = False
    ) -> None:
        self.info = run.subject.info
        self.device = device
        self.sparse = sparse
        self.generator = torch.Generator().manual_seed(run.seed)
        self.parameters = [
            torch.randn(shape, generator=self.generator).to(device).requires_grad_()
            for shape in _SHAPES
        ]
        self.optimizer: torch.optim.Optimizer = self.info.optim_cls(
            self.parameters, **copy.deepcopy(kwargs)
        )

    def step(self) -> None:
        """One step; what it draws comes from the CPU."""
        gradients = [self._gradient(shape) for shape in _SHAPES]
        if self.info.step_requires_closure:
            self.optimizer.step(self._closure)  # type: ignore[arg-type]
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.device)
        self.optimizer.step()

    def _gradient(self, shape: tuple[int, ...]) -> torch.Tensor:
        gradient = torch.randn(shape, generator=self.generator)
        if self.sparse:
            gradient[::2] = 0
            return gradient.to_sparse(1)
        return gradient

    def _closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = [(parameter - 0.5).square().sum() for parameter in self.parameters]
        loss = losses[0] + losses[1].to(self.device) + losses[2]
        torch.autograd.backward(loss)
        return loss

    def state(self) -> dict[str, Any]:
        """Parameters, and of the optimizer's state what lies with them."""
        found: dict[str, Any] = {
            f"parameter {n}": tensor.detach() for n, tensor in enumerate(self.parameters)
        }
        for number, parameter in enumerate(self.parameters):
            state = self.optimizer.state.get(parameter, {})
            for name in sorted(state):
                if isinstance(state[name], torch.Tensor) and state[name].dim():
                    found[f"{name} {number}"] = state[name].detach()
        return found


def trained(
    run: Run, kwargs: dict[str, Any], device: torch.device, sparse: bool = False
) -> dict[str, Any]:
    """Parameters and state after some steps. NotApplicable where torch allows it elsewhere only."""
    try:
        training = Training(run, kwargs, device, sparse)
        for _ in range(_STEPS):
            training.step()
    except (RuntimeError, AssertionError) as error:
        if _ONLY_ELSEWHERE.search(str(error)) and not isinstance(error, NotImplementedError):
            raise NotApplicable(str(error).splitlines()[0]) from error
        raise
    return training.state()


def _agree(run: Run, expected: dict[str, Any], got: dict[str, Any], device: torch.device) -> None:
    """One after the other, so that a difference has its name."""
    names = expected.keys() ^ got.keys()
    require(not names, f"state that only one of both has: {', '.join(sorted(names))}")
    for name, value in expected.items():
        run.agreement.check(value.cpu(), got[name], device, name)


def _agree_closely(expected: dict[str, Any], got: dict[str, Any], what: str) -> None:
    """Within torch's tolerance, whatever the backend declares: two ways to one result."""
    for name, value in expected.items():
        Agreement().check(value.cpu(), got[name], got[name].device, f"{name} {what}")


class OptimizerProperty(Property):
    """A property that looks at one configuration after the other."""

    kind = "optim"
    profiles = in_profiles(standard=Dtypes.NONE, full=Dtypes.NONE)

    def configurations(self, run: Run) -> list[dict[str, Any]]:
        """Arguments of the constructor."""
        return torch_testing.optimizer_configurations(run.subject.info, "cpu")

    @abstractmethod
    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Raises where `device` is wrong; also called with the CPU."""

    def check(self, run: Run) -> None:
        """Examines each configuration."""
        reasons = []
        for index, kwargs in enumerate(self.configurations(run)):

            def examine(device: torch.device, kwargs: dict[str, Any] = kwargs) -> None:
                try:
                    self.examine(run, kwargs, device)
                except NotApplicable as reason:
                    reasons.append(str(reason))
                    raise

            run.attempt(index, examine)
        if run.executed == 0 and reasons:
            raise NotApplicable(reasons[0])


def _dense(subject: Subject) -> str:
    return "it takes sparse gradients only" if subject.info.only_supports_sparse_grads else ""


def _offers(subject: Subject, implementation: str) -> str:
    offered = implementation in subject.info.supported_impls
    return _dense(subject) or ("" if offered else f"it has no {implementation}=")


class Steps(OptimizerProperty):
    """Parameters and state after three steps are the CPU's, in the loop over parameters."""

    name = "steps"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Dense gradients."""
        return _dense(subject)

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """foreach=False on both, where there is such an argument."""
        if "foreach" in run.subject.info.supported_impls:
            kwargs = {**kwargs, "foreach": False}
        _agree(run, trained(run, kwargs, CPU), trained(run, kwargs, device), device)


class Defaults(OptimizerProperty):
    """Without foreach= and fused=, three steps come as close to the CPU's as rounding allows."""

    name = "defaults"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers that choose an implementation by the device."""
        return _offers(subject, "foreach")

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Whichever implementation torch chooses for the device."""
        _agree_closely(trained(run, kwargs, CPU), trained(run, kwargs, device), "by default")


class Foreach(OptimizerProperty):
    """foreach=True gives what the CPU gives for it, and what the loop gives but for rounding."""

    name = "foreach"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers with this argument."""
        return _offers(subject, "foreach")

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """On the CPU torch has it too, out of single operators."""
        got = trained(run, {**kwargs, "foreach": True}, device)
        _agree(run, trained(run, {**kwargs, "foreach": True}, CPU), got, device)
        loop = trained(run, {**kwargs, "foreach": False}, device)
        _agree_closely(loop, got, "by foreach, against the loop")


class Fused(OptimizerProperty):
    """fused=True gives what the loop gives but for rounding."""

    name = "fused"
    profiles = in_profiles(smoke=Dtypes.NONE, standard=Dtypes.NONE, full=Dtypes.NONE)

    def configurations(self, run: Run) -> list[dict[str, Any]]:
        """In a short run the first with weight decay, which kernels forget."""
        every = super().configurations(run)
        decays = [kwargs for kwargs in every if kwargs.get("weight_decay")]
        return decays[:1] if run.is_short else every

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers with this argument."""
        return _offers(subject, "fused")

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Where torch lets the device try; a kernel that is not there is unimplemented."""
        got = trained(run, {**kwargs, "fused": True, "foreach": False}, device)
        loop = trained(run, {**kwargs, "foreach": False}, device)
        _agree_closely(loop, got, "by fused, against the loop")
        _agree_closely(trained(run, {**kwargs, "fused": True, "foreach": False}, CPU), got,
                       "by fused, against the CPU")  # fmt: skip


class Capturable(OptimizerProperty):
    """capturable=True, with its steps counted on the device, gives what the CPU's loop gives."""

    name = "capturable"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers with this argument."""
        return "" if subject.info.has_capturable_arg else "it has no capturable="

    def configurations(self, run: Run) -> list[dict[str, Any]]:
        """Optimizers that torch's database has for CUDA."""
        every = torch_testing.optimizer_configurations(run.subject.info, "cuda")
        return [kwargs for kwargs in every if kwargs.get("capturable")]

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Rates that are tensors lie on the device, as capturing wants them."""
        for foreach in (False, True):
            flags = {**kwargs, "foreach": foreach}
            got = trained(run, Transfer(device)(flags), device)
            plain = {**kwargs, "foreach": False, "capturable": False}
            plain = {name: _number(value) for name, value in plain.items()}
            _agree_closely(trained(run, plain, CPU), got, "capturable")


def _number(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_number(item) for item in value)
    return float(value) if isinstance(value, torch.Tensor) else value


class Sparse(OptimizerProperty):
    """Parameters and state after three steps with sparse gradients are the CPU's."""

    name = "sparse"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers that take sparse gradients."""
        info = subject.info
        takes = info.supports_sparse or info.only_supports_sparse_grads
        return "" if takes else "it takes no sparse gradients"

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Every second row has a gradient."""
        if kwargs.get("weight_decay"):
            raise NotApplicable("weight_decay is for dense gradients")
        if run.subject.info.supports_sparse:
            kwargs = {**kwargs, "foreach": False}
        expected = trained(run, kwargs, CPU, sparse=True)
        _agree(run, expected, trained(run, kwargs, device, sparse=True), device)


class StateDict(OptimizerProperty):
    """An optimizer that goes on from a saved state_dict goes where the first one goes."""

    name = "state_dict"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Dense gradients."""
        return _dense(subject)

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """Saved and loaded on the device, and on the CPU and brought to the device."""
        if "foreach" in run.subject.info.supported_impls:
            kwargs = {**kwargs, "foreach": False}
        first = Training(run, kwargs, device)
        first.step()
        for where in (device, CPU):
            saved = io.BytesIO()
            torch.save(first.optimizer.state_dict(), saved)
            saved.seek(0)
            other = Training(run, kwargs, device)
            other.generator.set_state(first.generator.get_state())
            _assign(other, first)
            other.optimizer.load_state_dict(torch.load(saved, map_location=where))
            self._stays(other, device)
            first.step()
            other.step()
            _agree(run, first.state(), other.state(), device)

    @staticmethod
    def _stays(training: Training, device: torch.device) -> None:
        for name, value in training.state().items():
            require(value.device == device, f"{name} was loaded to {value.device}")


def _assign(target: Training, source: Training) -> None:
    with torch.no_grad():
        for one, other in zip(target.parameters, source.parameters, strict=True):
            one.copy_(other)


class MixedDevices(OptimizerProperty):
    """One optimizer trains parameters of the device and of the CPU as if they lay together."""

    name = "mixed_devices"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Optimizers that take parameters of several devices."""
        several = subject.info.supports_multiple_devices and not subject.info.step_requires_closure
        return _dense(subject) or ("" if several else "it takes parameters of one device")

    def configurations(self, run: Run) -> list[dict[str, Any]]:
        """Each implementation, of the first configuration."""
        offered = "foreach" in run.subject.info.supported_impls
        return [{"foreach": False}, {"foreach": True}] if offered else [{}]

    def examine(self, run: Run, kwargs: dict[str, Any], device: torch.device) -> None:
        """The second of three parameters is on the CPU."""
        training = Training(run, kwargs, device)
        moved = training.parameters[1].detach().to(CPU).requires_grad_()
        training.parameters[1] = moved
        training.optimizer = run.subject.info.optim_cls(training.parameters, **kwargs)
        for _ in range(_STEPS):
            training.step()
        for name, value in training.state().items():
            where = CPU if name.endswith(" 1") else device
            require(value.device == where, f"{name} is on {value.device}, expected {where}")
        together = trained(run, kwargs, CPU)
        for name, value in training.state().items():
            run.agreement.check(together[name], value, value.device, name)


class Errors(Property):
    """Arguments that an optimizer refuses on the CPU are refused alike on the device."""

    name = "errors"
    kind = "optim"
    profiles = in_profiles(standard=Dtypes.NONE, full=Dtypes.NONE)

    def check(self, run: Run) -> None:
        """Each error input of torch's database."""
        for index, error in enumerate(torch_testing.optimizer_errors(run.subject.info)):
            run.attempt(index, self._bind(run, error))

    @staticmethod
    def _bind(run: Run, error: Any) -> Callable[[torch.device], None]:
        def examine(device: torch.device) -> None:
            _must_raise(run, error, device)

        return examine


def _must_raise(run: Run, error: Any, device: torch.device) -> None:
    given = error.optimizer_error_input
    if "capturable" in given.kwargs or "fused" in given.kwargs:
        raise NotApplicable("it depends on the device what of this is refused")
    what = given.desc
    parameters = given.params
    if parameters is None:
        parameters = [torch.ones(2, 2).requires_grad_()]
    parameters = Transfer(device)(parameters)
    try:
        optimizer = run.subject.info.optim_cls(parameters, **copy.deepcopy(given.kwargs))
        if error.error_on is not type(error.error_on).CONSTRUCTION_ERROR:
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    except error.error_type as raised:
        if not re.search(error.error_regex, str(raised)):
            raise Mismatch(f"{what}: raised {str(raised)[:100]!r}") from raised
        return
    except Exception as raised:
        expected = error.error_type.__name__
        raise Mismatch(
            f"{what}: raised {type(raised).__name__}({str(raised)[:100]!r}), expected {expected}"
        ) from raised
    if not issubclass(error.error_type, Warning):
        raise Mismatch(f"{what}: raised nothing, expected {error.error_type.__name__}")
    raise NotApplicable("a warning")


PROPERTIES = [
    Steps,
    Defaults,
    Foreach,
    Fused,
    Capturable,
    Sparse,
    StateDict,
    MixedDevices,
    Errors,
]
