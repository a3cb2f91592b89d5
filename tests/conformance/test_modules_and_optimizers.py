# SPDX-License-Identifier: BSD-3-Clause
"""Properties of modules and optimizers: each finds the defects that are meant for it."""

import gc

import pytest
import torch

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.cases import catalog
from npusim_conformance.cases.selection import Selection
from npusim_conformance.inputs import torch_testing
from npusim_conformance.properties.modules import LOST_LAZY
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import Status

OF_MODULES = ("forward", "backward", "move", "copies", "noncontiguous", "construction")
OF_OPTIMIZERS = ("steps", "defaults", "foreach", "fused", "state_dict", "mixed_devices")


@pytest.fixture(scope="module")
def worker():
    """Executes cases on npusim in this process."""
    threads = torch.get_num_threads()
    torch_testing.modules()
    gc.collect()
    gc.freeze()
    yield Worker(WorkerConfig("npusim", "torch_npusim", Expectations(), samples_max=8))
    gc.unfreeze()
    torch.set_num_threads(threads)


def found(worker, subject, properties):
    """The properties that fail."""
    dtype = "/float32" if subject.startswith("module") else ""
    outcomes = {name: worker.execute(f"{subject}/{name}{dtype}") for name in properties}
    return {name for name, outcome in outcomes.items() if outcome.status is Status.FAIL}


def on_device(tensor):
    return tensor.device.type == "npusim"


def test_names_are_torchs():
    modules = torch_testing.modules()
    assert len(modules) > 100
    for name, info in modules.items():
        prefix, _, attribute = name.partition(".")
        assert prefix == "nn"
        assert getattr(torch.nn, attribute) is info.module_cls
    for name, info in torch_testing.optimizers().items():
        assert getattr(torch.optim, name) is info.optim_cls


@pytest.mark.parametrize("name", ["nn.Linear", "nn.BatchNorm1d", "nn.LazyConv1d", "nn.GRU"])
def test_right_modules_pass(worker, name):
    assert found(worker, f"module:{name}", (*OF_MODULES, "errors")) == set()


@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS", "Muon"])
def test_right_optimizers_pass(worker, name):
    assert found(worker, f"optim:{name}", (*OF_OPTIMIZERS, "errors")) == set()


@pytest.mark.parametrize("name", ["LazyConv1d", "LazyConv2d"])
def test_lazy_parameters_are_the_backends_where_torch_keeps_them(worker, monkeypatch, name):
    right = torch.nn.Module.to

    def to(self, where):
        if isinstance(where, torch.device) and where.type == "npusim":
            for key, parameter in self._parameters.items():
                if torch.nn.parameter.is_lazy(parameter):
                    self._parameters[key] = torch.nn.Parameter(torch.empty(0, device=where))
        return right(self, where)

    monkeypatch.setattr(getattr(torch.nn, name), "to", to)
    outcome = worker.execute(f"module:nn.{name}/forward/float32")
    assert outcome.status is Status.FAIL
    may_change = "_has_compatible_shallow_copy_type"
    monkeypatch.setattr(torch, may_change, lambda one, other: one.device.type == other.device.type)
    outcome = worker.execute(f"module:nn.{name}/forward/float32")
    assert (outcome.status, outcome.message) == (Status.NA, LOST_LAZY)


def forward_of(kind, wrong, monkeypatch):
    """forward() of a module is `wrong(right result, module, input)` on npusim."""
    right = kind.forward

    def forward(self, x):
        result = right(self, x)
        return wrong(result, self, x) if on_device(x) else result

    monkeypatch.setattr(kind, "forward", forward)


def test_a_wrong_value(worker, monkeypatch):
    forward_of(torch.nn.Linear, lambda result, *_: result * 1.01, monkeypatch)
    assert "forward" in found(worker, "module:nn.Linear", OF_MODULES)


def test_a_wrong_gradient(worker, monkeypatch):
    forward_of(torch.nn.Linear, lambda y, *_: y + (y - y.detach()), monkeypatch)
    assert found(worker, "module:nn.Linear", OF_MODULES) == {"backward"}


def test_a_buffer_that_is_not_updated(worker, monkeypatch):
    def forget(result, module, x):
        if module.running_mean is not None:
            module.running_mean.zero_()
        return result

    forward_of(torch.nn.BatchNorm1d, forget, monkeypatch)
    assert "forward" in found(worker, "module:nn.BatchNorm1d", ("forward", "backward"))


def test_gaps_in_memory_that_are_not_seen(worker, monkeypatch):
    def wrong(result, module, x):
        return result if x.is_contiguous() else result * 0

    forward_of(torch.nn.Linear, wrong, monkeypatch)
    assert found(worker, "module:nn.Linear", OF_MODULES) == {"noncontiguous"}


def test_a_constructor_that_forgets_the_device(worker, monkeypatch):
    right = torch.nn.Linear.__init__

    def init(self, *args, device=None, dtype=None, **kwargs):
        right(self, *args, dtype=dtype, **kwargs)

    monkeypatch.setattr(torch.nn.Linear, "__init__", init)
    assert found(worker, "module:nn.Linear", ("construction",)) == {"construction"}


def test_a_state_dict_that_is_not_loaded(worker, monkeypatch):
    right = torch.nn.Module.load_state_dict

    def load(self, state):
        return None if on_device(next(iter(state.values()))) else right(self, state)

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", load)
    assert found(worker, "module:nn.Linear", ("copies", "forward")) == {"copies"}


def test_an_error_that_is_not_raised(worker, monkeypatch):
    right = torch.nn.RNNCell.forward

    def forward(self, x, hx=None):
        try:
            return right(self, x, hx)
        except RuntimeError:
            return x if on_device(x) else right(self, x, hx)

    monkeypatch.setattr(torch.nn.RNNCell, "forward", forward)
    assert found(worker, "module:nn.RNNCell", ("errors", "forward")) == {"errors"}


def test_a_wrong_step(worker, monkeypatch):
    right = torch.optim.SGD.step

    def step(self, closure=None):
        right(self, closure)
        parameter = self.param_groups[0]["params"][0]
        if on_device(parameter):
            with torch.no_grad():
                parameter.mul_(1.01)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    assert {"steps", "defaults", "mixed_devices"} <= found(worker, "optim:SGD", OF_OPTIMIZERS)


def test_a_fused_step_that_does_nothing(worker, monkeypatch):
    right = torch._fused_sgd_

    def fused(params, *args, **kwargs):
        if not on_device(params[0]):
            right(params, *args, **kwargs)

    monkeypatch.setattr(torch, "_fused_sgd_", fused)
    assert found(worker, "optim:SGD", ("fused", "steps", "foreach")) == {"fused"}


def test_smoke_asks_for_weight_decay_when_fused(monkeypatch):
    right = torch._fused_sgd_

    def fused(params, *args, **kwargs):
        forgets = {"weight_decay": 0.0} if on_device(params[0]) else {}
        right(params, *args, **{**kwargs, **forgets})

    monkeypatch.setattr(torch, "_fused_sgd_", fused)
    smoke = Worker(WorkerConfig("npusim", "torch_npusim", Expectations(), samples_max=4))
    case = "optim:SGD/fused"
    assert case in map(str, catalog.cases(Selection("smoke", subjects="optim:SGD")))
    assert smoke.execute(case).status is Status.FAIL


def test_a_foreach_step_that_forgets_the_last(worker, monkeypatch):
    right = torch._foreach_add_

    def foreach_add(tensors, *args, **kwargs):
        if on_device(tensors[0]) and len(tensors) > 1:
            tensors = tensors[:-1]
            args = tuple(arg[:-1] if isinstance(arg, (list, tuple)) else arg for arg in args)
        return right(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "_foreach_add_", foreach_add)
    assert "foreach" in found(worker, "optim:SGD", ("foreach",))
    assert found(worker, "optim:SGD", ("steps", "fused", "state_dict")) == set()


def test_a_state_that_is_not_loaded(worker, monkeypatch):
    right = torch.optim.Optimizer.load_state_dict

    def load(self, state):
        if not on_device(self.param_groups[0]["params"][0]):
            right(self, state)

    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", load)
    assert found(worker, "optim:Adam", ("state_dict", "steps")) == {"state_dict"}
