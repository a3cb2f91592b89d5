# SPDX-License-Identifier: BSD-3-Clause
"""Nested tensors of the strided layout, bit for bit as on the CPU."""

import io
import re

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, assert_same, bits, compare, refused, reseed
from torch.nested import as_nested_tensor, nested_tensor, to_padded_tensor

from torch_npusim.patches import is_version

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
aten = torch.ops.aten


def numbers(*shape):
    count = torch.Size(shape).numel()
    return (torch.sin(torch.arange(count, dtype=torch.float64) * 1.7) * 3).reshape(shape).float()


def nested(*shapes, requires_grad=True):
    """Deterministic numbers; what is compared starts on the CPU and is moved."""
    parts = [numbers(*shape) + index for index, shape in enumerate(shapes)]
    return nested_tensor(parts, requires_grad=requires_grad)


def ragged():
    return nested((2, 4), (5, 4), (1, 4))


def heads():
    return nested((2, 3, 4), (2, 5, 4))


def keys():
    return nested((2, 4, 3), (2, 4, 5))


def mask():
    return ragged().detach() > 0.3


def dense(*shape):
    return lambda: numbers(*shape).requires_grad_()


def plain(tensor):
    return lambda: tensor.clone()


FIRST_ARE_LEFT = plain(torch.tensor([[True, True, False], [True, False, False]]))
TOKENS = [torch.tensor([0, 2]), torch.tensor([1, 5, 3])]
VIEW_OF_FOUR = (
    torch.tensor([[1, 2], [2, 1]]),
    torch.tensor([[2, 1], [1, 1]]),
    torch.tensor([0, 2]),
)

CASES = {
    **{
        name: (getattr(torch, name), ragged)
        for name in ("abs", "cos", "sin", "neg", "relu", "sqrt", "isinf", "isnan", "isneginf")
    },
    "isposinf": (torch.isposinf, ragged),
    "logical_not": (torch.logical_not, mask),
    "sgn": (lambda x: x.detach().sgn(), ragged),
    "tanh": (lambda x: x.detach().tanh(), ragged),
    "gelu": (F.gelu, ragged),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ragged),
    "silu": (F.silu, ragged),
    **{
        name: (lambda x, name=name: getattr(x.clone(), name)(), ragged)
        for name in ("abs_", "neg_", "relu_", "zero_", "logical_not_")
    },
    "fill_": (lambda x: x.clone().fill_(2), ragged),
    "add": (torch.add, ragged, ragged),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), ragged, ragged),
    "add_number": (lambda x: x + 2, ragged),
    "sub": (torch.sub, heads, heads),
    "mul": (torch.mul, ragged, ragged),
    "mul_number": (lambda x: x * 2.5, ragged),
    "div": (torch.div, heads, heads),
    "add_": (lambda x, y: x.clone().add_(y), ragged, ragged),
    "mul_": (lambda x, y: x.clone().mul_(y), ragged, ragged),
    "mul_number_": (lambda x: x.clone().mul_(3), ragged),
    "eq": (lambda x: x == 0.0, ragged),
    "gt": (lambda x: x > 0.5, ragged),
    "ge": (lambda x: x >= 0.5, ragged),
    "all": (lambda m: m.all(-1), mask),
    "masked_fill": (lambda x, m: x.masked_fill(m, 0.25), ragged, mask),
    "linear": (F.linear, ragged, dense(6, 4), dense(6)),
    "matmul": (torch.matmul, heads, keys),
    "matmul_view": (lambda x, y: torch.matmul(x, y.transpose(-1, -2)), heads, heads),
    "bmm": (torch.bmm, ragged, lambda: nested((4, 2), (4, 3), (4, 1))),
    "bmm_dense": (lambda x, y: torch.bmm(x.detach(), y.detach()), ragged, dense(3, 4, 2)),
    "softmax": (lambda x: x.softmax(-1), ragged),
    "softmax_ragged": (lambda x: x.softmax(1), ragged),
    "safe_softmax": (lambda x: torch._safe_softmax(x, -1), ragged),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), ragged, dense(4), dense(4)),
    "sum": (lambda x: x.sum(-1, keepdim=True), ragged),
    "embedding": (
        lambda w, *i: F.embedding(nested_tensor(list(i), dtype=torch.int64, device=w.device), w),
        lambda: numbers(6, 4),
        *map(plain, TOKENS),
    ),
    "cat": (lambda x, y: torch.cat([x.detach(), y.detach()]), ragged, ragged),
    "dropout_of_nothing": (lambda x: F.dropout(x, 0.0), ragged),
    "dropout_of_all": (lambda x: F.dropout(x, 1.0), ragged),
    "transpose": (lambda x: x.detach().transpose(1, 2), heads),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(), ragged),
    "clone": (torch.clone, ragged),
    "detach": (torch.detach, ragged),
    "alias": (aten.alias, ragged),
    "select": (lambda x: x.select(0, 1), ragged),
    "select_inner": (lambda x: x.detach().select(2, 1), ragged),
    "subscript": (lambda x: (x[2], x[1, 2]), ragged),
    "unbind": (lambda x: x.unbind(), ragged),
    "unsqueeze": (lambda x: x.unsqueeze(-1), ragged),
    "squeeze": (lambda x: (x.unsqueeze(1).squeeze(1), x.unsqueeze(1).squeeze((1,))), ragged),
    "narrow": (lambda x: x.detach().narrow(0, 1, 2), ragged),
    "chunk": (lambda x: x.detach().chunk(2, -1), ragged),
    "split": (lambda x: x.detach().split([1, 3], -1), ragged),
    "view": (lambda x: x.view(3, -1, 2, 2), ragged),
    "reshape": (lambda x: x.transpose(1, 2).reshape(2, -1, 8), heads),
    "reshape_as": (lambda x, y: x.reshape_as(y), ragged, ragged),
    "values": (lambda x: x.values(), ragged),
    "zeros_like": (torch.zeros_like, ragged),
    "ones_like": (torch.ones_like, ragged),
    "dtypes": (lambda x: (x.double(), x.half(), x.detach().bool()), ragged),
    "copy_": (lambda x, y: x.double().copy_(y), ragged, ragged),
    "to_padded_tensor": (lambda x: to_padded_tensor(x, -1.0), ragged),
    "to_padded_tensor_size": (lambda x: to_padded_tensor(x, -1.0, (3, 7, 4)), ragged),
    "as_nested_tensor": (lambda a, b: as_nested_tensor([a, b]), dense(2, 3), dense(1, 3)),
    "as_nested_tensor_double": (
        lambda a, b: as_nested_tensor([a, b], dtype=torch.float64),
        dense(2, 3),
        dense(1, 3),
    ),
    "from_mask": (
        lambda x, m: torch._nested_tensor_from_mask(x, m),
        dense(2, 3, 4),
        FIRST_ARE_LEFT,
    ),
    "mask_left_aligned": (
        torch._nested_tensor_from_mask_left_aligned,
        dense(2, 3, 4),
        FIRST_ARE_LEFT,
    ),
    "from_padded": (
        lambda x: torch._nested_from_padded(x, torch.tensor([[2, 4], [3, 4]])),
        lambda: numbers(2, 3, 4),
    ),
    "view_from_buffer": (lambda b: torch._nested_view_from_buffer(b, *VIEW_OF_FOUR), dense(4)),
    "copy_of_view": (lambda b: torch._nested_view_from_buffer_copy(b, *VIEW_OF_FOUR), dense(4)),
    "scalars": (lambda x: x * 2, lambda: nested_tensor([torch.tensor(1.0), torch.tensor(2.0)])),
    "empty": (lambda x: (x * 2, x.clone(), x.unbind()), lambda: nested_tensor([])),
    "padded_empty": (lambda x: to_padded_tensor(x, 0.0), lambda: nested_tensor([])),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    call, *operands = CASES[name]
    compare(call, *(operand() for operand in operands), backward=True)


REFUSED = {
    "another shape": lambda x: x + nested((2, 4), (5, 4)).to(x.device),
    "a dense operand": lambda x: x * torch.ones(3, 1, 4, device=x.device),
    "an operator without a kernel": torch.exp,
    "the size of a ragged dimension": lambda x: x.size(1),
    "shape": lambda x: x.shape,
    "strides": lambda x: x.stride(),
    "sum over the ragged dimension": lambda x: x.sum(1, keepdim=True),
    "another norm": lambda x: F.layer_norm(x, (2, 4)),
    "another view": lambda x: x.view(3, -1, 3),
    "too small a padded tensor": lambda x: to_padded_tensor(x, 0.0, (3, 2, 4)),
    "a causal mask": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "copy from dense": lambda x: x.clone().copy_(torch.ones(4, device=x.device)),
    "copy into dense": lambda x: torch.ones(4, device=x.device).copy_(x),
    "data of a dense tensor": lambda x: setattr(torch.ones(4, device=x.device), "data", x),
    "a mask with holes": lambda x: torch._nested_tensor_from_mask(
        torch.ones(1, 2, 4, device=x.device), torch.tensor([[False, True]], device=x.device)
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_the_cpu_refuses_is_refused_in_its_words(what, requires_grad):
    errors = []
    for device in ("cpu", DEVICE):
        operand = ragged().detach().to(device).requires_grad_(requires_grad)
        with pytest.raises((RuntimeError, ValueError)) as caught:  # NotImplementedError is one
            REFUSED[what](operand)
        errors.append((caught.type, str(caught.value).partition("This could be")[0]))
    assert errors[1] == errors[0]


TWO_DEVICES = {
    "add": lambda here, there: here + there,
    "mul_dense": lambda here, there: here * there.values(),
    "bmm": lambda here, there: torch.bmm(here, torch.ones(3, 4, 2, device=there.device)),
    "linear": lambda here, there: F.linear(here, torch.ones(3, 4, device=there.device)),
    "where": lambda here, there: torch.where(here > 0, here, there),
    "as_nested_tensor": lambda here, there: as_nested_tensor([here.values(), there.values()]),
}


@pytest.mark.parametrize("name", TWO_DEVICES)
@pytest.mark.parametrize("there", ["cpu", f"{DEVICE}:1"])
def test_operands_on_two_devices_are_refused(name, there):
    tensor = ragged().detach()
    for pair in ((tensor.to(DEVICE), tensor.to(there)), (tensor.to(there), tensor.to(DEVICE))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            TWO_DEVICES[name](*pair)


def test_a_host_scalar_is_taken():
    compare(lambda x: x.detach() * torch.tensor(2.0), ragged())


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_devices(non_blocking):
    expected = ragged().detach()
    first = expected.to(DEVICE, non_blocking=non_blocking)
    second = first.to(f"{DEVICE}:1", non_blocking=non_blocking)
    assert (first.device.index, second.device.index) == (0, 1)
    torch.npusim.synchronize(0)
    torch.npusim.synchronize(1)
    assert_same(expected, first)
    for back in (second.cpu(), torch.empty_like(second, device="cpu").copy_(second)):
        assert back.device.type == "cpu"
        assert torch.equal(bits(back.values()), bits(expected.values()))
    assert_same(expected.double(), second.to(DEVICE + ":0", torch.float64))
    assert_same(expected, torch.zeros_like(first).copy_(expected))


def test_a_round_trip_carries_gradients():
    leaf = ragged()
    (to_padded_tensor(leaf.to(DEVICE).cpu(), 0.0) * 3).sum().backward()
    assert leaf.grad.values().tolist() == [3.0] * 32


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.values(),
        lambda x: x.unbind()[1],
        lambda x: x.select(0, 1),
        lambda x: x.transpose(1, 2),
        lambda x: x.unsqueeze(1),
        lambda x: x.detach(),
        lambda x: x.view(3, -1, 2, 2),
        lambda x: x.contiguous(),
    ],
)
def test_views_share_their_memory(view):
    tensor = ragged().detach().to(DEVICE)
    alias = view(tensor)
    assert alias.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    tensor.zero_()
    values = alias.values() if alias.is_nested and alias.is_contiguous() else alias
    if not values.is_nested:
        assert not values.any()
        values.fill_(7)
        assert 7.0 in tensor.values().tolist()


def test_an_operation_in_place_is_seen_by_autograd():
    leaf = ragged().detach().to(DEVICE).requires_grad_()
    square = leaf * leaf
    before = leaf._version
    with torch.no_grad():
        leaf.mul_(2)
    assert leaf._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.unbind()[0].sum().backward()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_constructors(requires_grad):
    lists = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    options = {"dtype": torch.float64, "requires_grad": requires_grad}
    made = nested_tensor([torch.tensor(part) for part in lists], device=DEVICE, **options)
    assert_same(nested_tensor([torch.tensor(part) for part in lists], **options), made)
    assert (made.is_leaf, made.requires_grad) == (True, requires_grad)


def test_members_are_of_the_host():
    with pytest.raises(RuntimeError, match="CPU tensors on every device"):
        torch._nested_view_from_buffer(
            torch.ones(4, device=DEVICE), *(member.to(DEVICE) for member in VIEW_OF_FOUR)
        )
    sizes = torch.tensor([[2, 4], [3, 4]], device=DEVICE)
    made = torch._nested_from_padded(torch.ones(2, 3, 4, device=DEVICE), sizes)
    sizes.zero_()
    assert made._nested_tensor_size().tolist() == [[2, 4], [3, 4]]


def test_random_numbers_are_those_of_the_buffer():
    tensor = ragged().detach().to(DEVICE)
    for draw in (lambda x: F.dropout(x, 0.4), lambda x: x.clone().normal_(), torch.randn_like):
        reseed(1)
        of_nested = draw(tensor).values()
        reseed(1)
        assert torch.equal(of_nested, draw(tensor.values()))


def test_printing_and_saving():
    tensor = ragged().detach()
    moved = tensor.to(DEVICE)
    assert re.sub(r", device='npusim:0'", "", repr(moved)) == repr(tensor)
    file = io.BytesIO()
    torch.save(moved.requires_grad_(), file)
    file.seek(0)
    # From 2.15 on torch.load() takes no nested tensor, of any device, with weights_only=True.
    weights_only = is_version("<2.15")
    loaded = torch.load(file, weights_only=weights_only)
    assert loaded.requires_grad
    assert_same(tensor, loaded.detach())
    file.seek(0)
    moved_back = torch.load(file, map_location="cpu", weights_only=weights_only)
    assert moved_back.device.type == "cpu"
    with pytest.raises(TypeError, match="numpy"):
        moved.numpy()


def test_inference_mode():
    with torch.inference_mode():
        moved = ragged().to(DEVICE)
        doubled = moved * 2
        assert doubled.is_inference()
        assert_same(ragged() * 2, doubled)


def test_memory_returns():
    torch.npusim.synchronize()
    before = torch.npusim.memory_allocated()
    for _ in range(3):
        leaf = ragged().detach().to(DEVICE).requires_grad_()
        weight = torch.ones(4, 4, device=DEVICE, requires_grad=True)
        result = F.linear(leaf.transpose(1, 2).contiguous().transpose(1, 2).contiguous(), weight)
        to_padded_tensor(F.layer_norm(result, (4,), weight[0], weight[1]), 0.0).sum().backward()
        sizes = result._nested_tensor_size()
        del leaf, weight, result
        assert torch.npusim.memory_allocated() == before
    assert sizes.tolist() == [[2, 4], [5, 4], [1, 4]]


def test_the_host_waits_for_a_mask_and_for_nothing_else():
    padded, first_are_left = torch.ones(2, 3, 4, device=DEVICE), FIRST_ARE_LEFT().to(DEVICE)
    tensor = torch._nested_tensor_from_mask(padded, first_are_left)
    torch.npusim.set_sync_debug_mode("error")
    try:
        to_padded_tensor((tensor * 2).transpose(1, 2).contiguous(), 0.0)
        with pytest.raises(RuntimeError, match=r"synchronizing.*_nested_tensor_from_mask"):
            torch._nested_tensor_from_mask(padded, first_are_left)
    finally:
        torch.npusim.set_sync_debug_mode("default")


def test_operations_take_modelled_time():
    tensor = ragged().detach().to(DEVICE)
    begin, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
    begin.record()
    tensor.relu()
    end.record()
    torch.npusim.synchronize()
    assert begin.elapsed_time(end) > 0


def test_select_counts_dimensions_from_the_end():
    """The CPU of torch 2.13 ends the process here, so its positive dimension is the oracle."""
    on_host, on_device = ragged(), ragged().detach().to(DEVICE).requires_grad_()
    for index in (0, 3):
        inner = [on_host.select(2, index), on_device.select(-1, index)]
        assert_same(*[to_padded_tensor(result.contiguous(), 0.0) for result in inner])
    outer = [on_host.select(0, 1), on_device.select(-3, 1)]
    assert_same(*outer)
    for result in outer:
        (result * result).sum().backward()
    assert_same(on_host.grad, on_device.grad)
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be .* got -4\)"):
        on_device.select(-4, 0)


OPTIMIZERS = {
    "sgd": lambda leaf: torch.optim.SGD([leaf], 0.1),
    "momentum": lambda leaf: torch.optim.SGD([leaf], 0.1, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_their_default_flags(name):
    """They choose foreach for this device, and single tensors for the CPU."""
    trained = []
    for device in ("cpu", DEVICE):
        leaf = torch.nn.Parameter(ragged().detach().to(device))
        optimizer = OPTIMIZERS[name](leaf)
        for _ in range(3):
            optimizer.zero_grad()
            to_padded_tensor(leaf * leaf, 0.0).sum().backward()
            optimizer.step()
        trained.append(leaf.detach())
    assert_same(*trained)


def test_optimizers_that_core_has_no_nested_kernels_for():
    def step(leaf):
        to_padded_tensor(leaf * leaf, 0.0).sum().backward()
        torch.optim.AdamW([leaf]).step()

    refused(step, ragged().detach().requires_grad_(), match=r"lerp_\.Scalar")


def test_the_list_of_shadowed_operators_is_complete():
    """A composite would be taken before the fallback: the operator needs a registration."""
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "NestedTensorCPU"):
            table = torch._C._dispatch_dump_table(name)
            served = next(
                line for line in table.splitlines() if line.startswith("NestedTensorPrivateUse1")
            )
            if not served.endswith(("[kernel]", "[backend fallback]")):
                missing.append(name)
    assert missing == ["aten::_test_autograd_multiple_dispatch.ntonly"]
