# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.testing.leaks outside of pytest: blocks by number, and who keeps them."""

import contextvars
import gc
import re
from types import SimpleNamespace

import pytest
import torch

from torch_npusim.testing import leaks

HERE = SimpleNamespace()


@pytest.fixture(autouse=True)
def _stacks():
    with leaks.allocation_stacks():
        yield
    HERE.__dict__.clear()


def block(elements=8):
    return torch.zeros(elements, device="npusim")


def test_live_blocks_are_those_after_the_mark_that_nobody_freed():
    before = block()
    since = leaks.mark()
    kept, freed = block(10), block(20)
    other = torch.zeros(3, device="npusim:1")
    del freed
    found = leaks.live_blocks(since)
    assert [(it.device, it.bytes, it.address) for it in found] == [
        (0, 40, kept.untyped_storage().data_ptr()),
        (1, 12, other.untyped_storage().data_ptr()),
    ]
    assert found[0].number < found[1].number
    assert found[0].stack()[0].function == "block"
    assert before.untyped_storage().data_ptr() not in [it.address for it in found]


def test_without_recording_nothing_is_listed():
    since = leaks.mark()
    with leaks.allocation_stacks():
        pass  # its end stops the recording
    kept = block()
    assert leaks.live_blocks(since) == []
    assert leaks.keepers(kept)[-1].startswith("local variable 'kept' of test_without_recording")


def test_a_local_variable_is_named_when_nothing_else_is_there():
    kept = block()
    [line] = leaks.keepers(kept)
    assert line.startswith("local variable 'kept' of test_a_local_variable_is_named")


def test_a_view_keeps_the_block():
    since = leaks.mark()
    HERE.row = block(100)[3:5]
    gc.collect()
    [found] = leaks.live_blocks(since)
    lines = leaks.keepers(found)
    assert lines[0] == "attribute 'row' of a types.SimpleNamespace"
    assert lines[1].startswith("global variable 'HERE' of module")


def test_frozen_objects_are_named_too():
    HERE.frozen = block()
    gc.freeze()  # as a program does before it forks
    assert leaks.keepers(HERE.frozen)[0] == "attribute 'frozen' of a types.SimpleNamespace"


@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_a_sparse_tensor_keeps_its_parts(convert):
    since = leaks.mark()
    HERE.sparse = getattr(torch.eye(4, device="npusim"), convert)()
    gc.collect()
    found = leaks.live_blocks(since)
    assert len(found) == (2 if convert == "to_sparse" else 3)
    for part in found:
        assert leaks.keepers(part)[0] == "attribute 'sparse' of a types.SimpleNamespace"


def test_what_only_cpp_holds_says_so():
    since = leaks.mark()
    address = torch.npusim.caching_allocator_alloc(64)
    [found] = leaks.live_blocks(since)
    assert (found.address, found.bytes) == (address, 64)
    [line] = leaks.keepers(found)
    assert line.startswith("C++: no Python object, and no autograd graph that Python can reach")
    torch.npusim.caching_allocator_delete(address)
    assert leaks.live_blocks(since) == []


def hooked():
    extra = block()
    output = torch.ones(1, requires_grad=True) * 2
    output.grad_fn.register_hook(lambda *_: extra.sum() and None)
    return output


def test_a_hook_of_a_node_ends_in_cpp():
    since = leaks.mark()
    HERE.output = hooked()
    [found] = leaks.live_blocks(since)
    first, *_, last = leaks.keepers(found)
    assert first.startswith("variable 'extra' in the closure of hooked.<locals>.<lambda>()")
    assert last.startswith("C++, such as a hook of an autograd node")


class Average:
    def __init__(self):
        self.weights = torch.ones(8, device="npusim", requires_grad=True)
        self.total = torch.zeros((), device="npusim")

    def step(self):
        self.total = self.total + self.weights.sigmoid().square().sum()


def test_a_graph_belongs_to_the_last_tensor_not_to_one_that_it_saves():
    HERE.average = Average()
    since = leaks.mark()
    HERE.average.step()
    for found in leaks.live_blocks(since):
        first, *others = leaks.keepers(found)
        if found.bytes == 32:  # the sigmoid's result, which the square saves as a Python object
            assert first.endswith("in the autograd graph of a Tensor of shape [] on npusim:0")
        assert "attribute 'total' of a " in " ".join([first, *others])


def test_the_search_keeps_nothing_itself():
    kept = block()
    leaks.keepers(kept)  # looks at the local variables of functions too
    address = kept.untyped_storage().data_ptr()
    gc.disable()
    try:
        leaks.report(leaks.live_blocks())
        del kept
        assert address not in [found.address for found in leaks.live_blocks()]
    finally:
        gc.enable()


def test_a_gradient_is_told_from_its_parameter():
    HERE.weight = torch.nn.Parameter(block())
    HERE.weight.sum().backward()
    assert leaks.keepers(HERE.weight.grad)[0] == (
        "gradient of a Parameter of shape [8] on npusim:0"
    )
    assert leaks.keepers(HERE.weight)[0] == "attribute 'weight' of a types.SimpleNamespace"


def test_slots_and_keys_and_context_variables():
    class Slotted:
        __slots__ = ("kept",)

    HERE.slotted = Slotted()
    HERE.slotted.kept = {("a", 1): block()}
    found = leaks.keepers(HERE.slotted.kept["a", 1])
    assert found[0] == "item [a builtins.tuple] of a dict of 1"
    assert found[1].startswith("attribute 'kept' of a ")
    variable = contextvars.ContextVar("variable")
    HERE.context = contextvars.Context()
    value = block()
    HERE.context.run(variable.set, value)
    address = value.untyped_storage().data_ptr()
    del value
    [held] = [it for it in leaks.live_blocks() if it.address == address]
    assert "attribute 'context' of a types.SimpleNamespace" in leaks.keepers(held)


def test_a_report_groups_blocks_by_their_place():
    since = leaks.mark()
    HERE.many = [block(100) for _ in range(3)]
    HERE.one = torch.ones(2, device="npusim")
    gc.collect()
    text = leaks.report(leaks.live_blocks(since), most=1)
    assert text.startswith("1.17 KiB in 3 blocks on npusim:0, allocated at\n")
    assert re.search(r"item \[[012]\] of a list of 3", text), text  # whose address is the lowest
    assert text.endswith("and 8 B from 1 other places")


def test_a_tensor_without_memory_on_npusim_is_an_error():
    with pytest.raises(ValueError, match=r"got a Tensor of shape \[3\] on cpu"):
        leaks.keepers(torch.ones(3))


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError("no function takes this tensor")


class Wrapping(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(
            cls, (2,), layout=torch.sparse_coo, device="npusim"
        )

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise ValueError("no operator takes this tensor")


@pytest.mark.parametrize(
    "others",
    [
        lambda: torch.nn.LazyLinear(3, device="npusim").weight,
        lambda: block().as_subclass(Refusing),
        Wrapping,
    ],
    ids=["uninitialized", "refusing", "wrapping"],
)
def test_tensors_of_others_that_answer_nothing_do_not_stop_the_search(others):
    HERE.kept, also = block(), others()
    assert leaks.keepers(HERE.kept)[0] == "attribute 'kept' of a types.SimpleNamespace"
    assert also is not None
