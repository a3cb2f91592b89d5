# SPDX-License-Identifier: BSD-3-Clause
"""The leak check: each planted leak is found and its keeper named; clean tests pass in silence."""

import pytest

PLANTED = """
    import functools
    import sys
    import threading
    import types

    import pytest
    import torch

    def block():
        return torch.ones(256, device="npusim")

    HISTORY = []

    def test_global_list():
        HISTORY.append(block())

    def test_closure():
        activations = block()

        def report():
            return activations

        HISTORY.append(report)

    @functools.lru_cache
    def table(size):
        return block()

    def test_cache_decorator():
        table(256)

    class Registry:
        newest = None

    def test_class_attribute():
        Registry.newest = block()

    def test_exception():
        def work():
            scratch = block()
            raise ValueError(scratch.shape)

        try:
            work()
        except ValueError as error:
            HISTORY.append(error)

    LAYER = torch.nn.Linear(2, 2)

    class Probe:
        def __init__(self):
            self.seen = block()

        def watch(self, *arguments):
            pass

    def test_bound_method_as_hook():
        LAYER.register_forward_hook(Probe().watch)

    def batches():
        batch = block()
        yield batch
        yield batch

    STREAMS = {}

    def test_generator():
        STREAMS["train"] = batches()
        next(STREAMS["train"])

    LOCAL = threading.local()

    def test_thread_local():
        LOCAL.workspace = block()

    def test_graphs_of_a_running_loss():
        global running_loss
        running_loss = torch.zeros((), device="npusim")
        weight = block().requires_grad_()
        for _ in range(3):
            running_loss = running_loss + weight.exp().sum()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running_mean", block())

    MODELS = {}

    def test_buffer_of_a_module():
        MODELS["ema"] = Net()

    def test_gradient():
        LAYER.weight_of_device = torch.nn.Parameter(block())
        LAYER.weight_of_device.sum().backward()

    def test_state_of_an_optimizer():
        HISTORY.append(torch.optim.SGD([torch.zeros(256)], momentum=0.9))
        HISTORY[-1].state["momentum"] = block()

    def test_default_argument():
        def scale(by=block()):
            return by

        HISTORY.append(functools.partial(scale))

    def test_running_thread():
        def serve():
            resident = block()
            ready.set()
            stop.wait()

        global stop
        ready, stop = threading.Event(), threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        assert ready.wait(60)

    def test_saved_in_a_custom_function():
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                context.extra = block()
                return 2 * x

            @staticmethod
            def backward(context, gradient):
                return 2 * gradient

        HISTORY.append(Double.apply(torch.ones(1, requires_grad=True)))

    @pytest.fixture(scope="module")
    def kept_fixture():
        value = block()
        sys.modules["elsewhere"] = types.ModuleType("elsewhere")
        sys.modules["elsewhere"].value = value
        return value

    def test_fixture_of_the_module(kept_fixture):
        pass
"""
KEEPERS = {
    "test_global_list": ["of a list", "global variable 'HISTORY' of module test_it"],
    "test_closure": [
        "variable 'activations' in the closure of test_closure.<locals>.report()",
        "global variable 'HISTORY' of module test_it",
    ],
    "test_cache_decorator": ["results cached by functools.lru_cache of table()"],
    "test_class_attribute": ["attribute 'newest' of class test_it.Registry"],
    "test_exception": [
        "local variable 'scratch' of test_exception.<locals>.work()",
        "exception ValueError(",
        "global variable 'HISTORY' of module test_it",
    ],
    "test_bound_method_as_hook": [
        "attribute 'seen' of a test_it.Probe",
        "bound method Probe.watch",
        "attribute '_forward_hooks' of a torch.nn.modules.linear.Linear",
        "global variable 'LAYER' of module test_it",
    ],
    "test_generator": [
        "local variable 'batch' of suspended generator batches()",
        "item 'train' of a dict",
        "global variable 'STREAMS' of module test_it",
    ],
    "test_thread_local": [
        "attribute 'workspace' of a threading.local",
        "global variable 'LOCAL' of module test_it",
    ],
    "test_graphs_of_a_running_loss": [
        "saved for backward as 'result' by ExpBackward0, in the autograd graph of a Tensor",
        "global variable 'running_loss' of module test_it",
    ],
    "test_buffer_of_a_module": [
        "buffer 'running_mean' of a test_it.Net",
        "item 'ema' of a dict",
        "global variable 'MODELS' of module test_it",
    ],
    "test_gradient": [
        "gradient of a Parameter of shape [256]",
        "parameter 'weight_of_device' of a torch.nn.modules.linear.Linear",
        "global variable 'LAYER' of module test_it",
    ],
    "test_state_of_an_optimizer": [
        "item 'momentum' of a defaultdict",
        "attribute 'state' of a torch.optim.sgd.SGD",
        "global variable 'HISTORY' of module test_it",
    ],
    "test_default_argument": [
        "default argument [0] of test_default_argument.<locals>.scale()",
        "functools.partial",
        "global variable 'HISTORY' of module test_it",
    ],
    "test_running_thread": ["local variable 'resident' of test_running_thread.<locals>.serve()"],
    "test_saved_in_a_custom_function": [
        "attribute 'extra' of a torch.autograd.function.DoubleBackward",
        "autograd graph (.grad_fn) of a Tensor of shape [1] on cpu",
        "global variable 'HISTORY' of module test_it",
    ],
    "test_fixture_of_the_module": ["global variable 'value' of module elsewhere"],
}


@pytest.fixture(scope="module")
def planted(run_pytest):
    run = run_pytest({"test_it.py": PLANTED}, "--npusim")
    print(run.output)
    return run


def test_every_planted_leak_is_an_error_and_nothing_else(planted):
    assert {name for name, outcome in planted.outcomes if outcome == "ERROR"} == set(KEEPERS)
    count = len(KEEPERS)
    text = f"{count} of {count} tests used a device, and {count} left memory on it"
    assert text in planted.section("npusim")


@pytest.mark.parametrize("name", KEEPERS)
def test_the_keeper_is_named(planted, name):
    text = planted.leak_of(name)
    assert "of device memory" in text
    _, _, after = text.partition("kept alive by")
    for words in KEEPERS[name]:
        _, found, after = after.partition(words)
        assert found, f"{words!r} is not among\n{text}"


def test_the_place_of_the_allocation_is_named(planted):
    text = planted.leak_of("test_global_list")
    line = next(n for n, line in enumerate(PLANTED.splitlines(), 1) if "torch.ones(256" in line)
    assert f"test_it.py:{line} in block" in text
    assert f"test_it.py:{line + 5} in test_global_list" in text
    assert "_pytest" not in text


CLEAN = """
    import logging
    import unittest

    import pytest
    import torch

    TABLE = torch.arange(10, device="npusim")  # made while this file is imported

    @pytest.fixture(scope="session")
    def model():
        return torch.nn.Linear(4, 4, device="npusim")

    @pytest.fixture(scope="module")
    def optimizer(model):
        yield torch.optim.Adam(model.parameters())

    @pytest.fixture(scope="class")
    def cache():
        return {}

    @pytest.fixture
    def batch():
        return torch.randn(8, 4, device="npusim")

    @pytest.mark.parametrize("step", range(40))
    def test_training_fills_what_wider_fixtures_hold(model, optimizer, batch, step):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        assert loss.item() >= 0

    class TestCache:
        @pytest.mark.parametrize("key", range(40))
        def test_filling_a_cache_of_the_class(self, cache, key):
            cache[key] = torch.ones(key + 1, device="npusim")
            self.mine = cache[key] * 2

    @pytest.mark.parametrize("n", range(40))
    def test_cycles_of_objects(n):
        class Node:
            pass

        node = Node()
        node.itself, node.value = node, torch.ones(n + 2, device="npusim")
        with pytest.raises(RuntimeError, match="must match"):
            node.value + torch.ones(n + 4, device="npusim")

    class TestUnit(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.shared = torch.ones(3, device="npusim")

        def setUp(self):
            self.own = self.shared + 1

        def test_one(self):
            self.assertEqual(self.own.sum(), 6)

        def test_two(self):
            self.other = self.own * 2

    class Layer:
        def __call__(self, x):
            self.last = x * 2

    @pytest.mark.parametrize("layer", [Layer(), Layer()])
    def test_an_argument_keeps_what_it_made_last(layer):
        layer(torch.ones(4, device="npusim"))

    @pytest.mark.parametrize("n", range(36))
    def test_graphs(n, capsys, caplog):
        x = torch.ones(n + 1, device="npusim", requires_grad=True)
        y = (x.exp() * x).sum()
        print(y)
        logging.getLogger(__name__).warning("%s", y)
        torch.autograd.grad(y, x, create_graph=True)

    def setup_module():
        global prepared
        prepared = torch.ones(5, device="npusim")

    @pytest.mark.parametrize("value", [TABLE[:3], TABLE[3:5]] * 19 + [TABLE, TABLE[0]])
    def test_parameters_on_the_device(value):
        assert value.numel() > 0
        global prepared
        prepared.add_(1)
"""


def test_two_hundred_clean_tests_pass_in_silence(run_pytest):
    run = run_pytest({"test_it.py": CLEAN, "test_more.py": "from test_it import *\n"}, "--npusim")
    outcomes = {outcome for _, outcome in run.outcomes}
    assert outcomes == {"PASSED"}, run.output
    assert "of 400 tests used a device, and 0 left memory on it" in run.section("npusim")


FAILING = """
    import sys

    import pytest
    import torch

    @pytest.fixture(scope="module")
    def shared():
        return torch.ones(5, device="npusim")

    def test_failing(shared):
        scratch = shared * 2
        assert (scratch == 0).all()

    @pytest.mark.xfail(reason="planted")
    def test_expected_to_fail(shared):
        scratch = shared * 2
        raise RuntimeError

    def test_skipped_after_allocating():
        scratch = torch.ones(3, device="npusim")
        pytest.skip("a reason")

    KEPT = []

    @pytest.mark.npusim(leaks=False)
    def test_not_checked():
        KEPT.append(torch.ones(7, device="npusim"))

    def test_last_of_the_module(shared):
        pass
"""


def test_what_a_failure_keeps_is_no_leak(run_pytest):
    run = run_pytest({"test_it.py": FAILING}, "--npusim")
    bad = {name for name, outcome in run.outcomes if outcome != "PASSED"}
    assert bad == {"test_failing"}, run.output
    assert "4 of 5 tests used a device, and 0 left memory on it" in run.section("npusim")


ONE = """
    import torch

    KEPT = []

    def test_it():
        KEPT.append(torch.ones(7, device="npusim"))
"""


def test_a_leak_can_be_a_warning_or_allowed(run_pytest):
    run = run_pytest({"test_it.py": ONE}, "--npusim", "--npusim-leaks=warn")
    assert run.outcomes == {("test_it", "PASSED")}
    assert "UserWarning: the test left 28 B of device memory" in run.output
    ini = "[pytest]\nnpusim_leaks_allow = global variable 'KEPT' of module test_it *\n"
    run = run_pytest({"test_it.py": ONE, "pytest.ini": ini}, "--npusim")
    assert run.outcomes == {("test_it", "PASSED")}, run.output


def test_a_leak_in_a_worker_of_xdist_is_in_the_summary(run_pytest):
    run = run_pytest({"test_it.py": ONE}, "--npusim", "-n1")
    assert "global variable 'KEPT' of module test_it" in run.leak_of("test_it")
    assert "test_it.py::test_it: 28 bytes" in run.section("npusim")
