# SPDX-License-Identifier: BSD-3-Clause
"""Which devices operands may lie on, which device results lie on, and indices out of range."""

import pytest
import torch
from oracle import DEVICE

SECOND = "npusim:1"


def ones(device=DEVICE, *shape):
    return torch.ones(shape or (3,), device=device)


# --- Mixed devices (rule O2) ----------------------------------------------------------------------

MIXED = {
    "add": ("aten::add", lambda a, b: a + b),
    "add_": ("aten::add_", lambda a, b: a.add_(b)),
    "mm": ("aten::mm", lambda a, b: a[None] @ b[:, None]),
    "cat": ("aten::cat", lambda a, b: torch.cat([a, b])),
    "where": ("aten::where", lambda a, b: torch.where(a > 0, a, b)),
    "out": ("aten::cumsum", lambda a, b: torch.cumsum(a, 0, out=b)),
    "foreach": ("aten::", lambda a, b: torch._foreach_add([a], [b])),
    "linear": ("aten::", lambda a, b: torch.nn.functional.linear(a, b[None])),
    "gather": ("aten::gather", lambda a, b: a.gather(0, b.long())),
    "lerp": ("", lambda a, b: a.lerp(b, 0.5)),  # torch's own text, which names no operator
}


@pytest.mark.parametrize("other", ["cpu", SECOND])
@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_raise_and_name_both(name, other):
    """Rule O2."""
    operator, run = MIXED[name]
    a, b = ones(), ones(other)
    with pytest.raises(
        RuntimeError, match="Expected all tensors to be on the same device"
    ) as caught:
        run(a, b)
    text = str(caught.value)
    assert "npusim:0" in text
    assert other in text
    assert operator in text
    assert b.tolist() == [1, 1, 1]


def test_mixed_devices_in_the_backward_pass_raise():
    x = ones().requires_grad_()
    with pytest.raises(RuntimeError, match="device"):
        (x * 2).backward(ones(SECOND))


def test_nothing_is_left_behind_by_a_refusal():
    import gc

    a, b = ones(), ones("cpu")
    gc.collect()
    before = torch.npusim.memory_allocated()
    for _ in range(5):
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([a, b])
    gc.collect()
    assert torch.npusim.memory_allocated() == before


SCALAR_ACCEPTED = {
    "add": lambda x, s: x + s,
    "radd": lambda x, s: s + x,
    "mul_": lambda x, s: x.mul_(s),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "lt": lambda x, s: x < s,
    "maximum": torch.maximum,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fill_": lambda x, s: x.fill_(s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "index_put": lambda x, s: x.index_put((torch.tensor([0], device=x.device),), s),
    "setitem": lambda x, s: x.__setitem__(slice(0, 2), s) or x,
    "addcmul": lambda x, s: torch.addcmul(x, x, s),
    "copy_": lambda x, s: x.copy_(s),
}


@pytest.mark.parametrize("name", SCALAR_ACCEPTED)
def test_host_tensors_without_dimensions_are_accepted_where_cuda_does(name):
    """Rule O2."""
    run = SCALAR_ACCEPTED[name]
    scalar = torch.tensor(0.5)
    got = run(ones(), scalar)
    assert got.is_npusim
    assert torch.equal(got.cpu(), run(ones("cpu"), scalar))


SCALAR_REFUSED = {
    "cat": lambda x, s: torch.cat([x, s[None]]),
    "mm": lambda x, s: x[None] @ s.reshape(1, 1),
    "gather": lambda x, s: x.gather(0, s.long()),
    "searchsorted": lambda x, s: torch.searchsorted(x, s),
    "stack": lambda x, s: torch.stack([x[0], s]),
    "dot": lambda x, s: x.dot(s.expand(3)),
    "1-d": lambda x, s: x + s[None],
    "clamp": lambda x, s: x.clamp(min=s),
    "host in place": lambda x, s: s.add_(x[0]),
    "host out": lambda x, s: torch.add(x[0], x[1], out=s),
}


@pytest.mark.parametrize("name", SCALAR_REFUSED)
def test_other_host_tensors_are_refused(name):
    """Rule O2."""
    with pytest.raises(RuntimeError, match=r"device|Expected all tensors"):
        SCALAR_REFUSED[name](ones(), torch.tensor(0.5))


def test_zero_dimensional_tensors_of_another_npusim_device_are_refused():
    with pytest.raises(RuntimeError, match=r"npusim:0 and npusim:1"):
        ones() + torch.tensor(1.0, device=SECOND)


# --- Indices out of range -------------------------------------------------------------------------

INDICES = {
    "factory": lambda: torch.ones(3, device="npusim:7"),
    "empty": lambda: torch.empty(3, device="npusim:7"),
    "empty_strided": lambda: torch.empty_strided((3,), (1,), device="npusim:7"),
    "tensor": lambda: torch.tensor([1.0], device="npusim:7"),
    "arange": lambda: torch.arange(3, device="npusim:7"),
    "rand": lambda: torch.rand(3, device="npusim:7"),
    "to": lambda: torch.ones(3).to("npusim:7"),
    "like": lambda: torch.zeros_like(torch.ones(3), device="npusim:7"),
    "from device": lambda: ones().to("npusim:7"),
    "method": lambda: torch.ones(3).npusim(7),
    "module": lambda: torch.nn.Linear(2, 2).to("npusim:7"),
    "set_device": lambda: torch.npusim.set_device(7),
    "device context": lambda: torch.npusim.device(7).__enter__(),
    "accelerator": lambda: torch.accelerator.set_device_index(7),
    "synchronize": lambda: torch.npusim.synchronize(7),
    "stream": lambda: torch.npusim.Stream(device="npusim:7"),
    "torch stream": lambda: torch.Stream(device="npusim:7"),
    "current stream": lambda: torch.npusim.current_stream(7),
    "generator": lambda: torch.Generator(device="npusim:7"),
    "state of random numbers": lambda: torch.npusim.get_rng_state(7),
    "memory": lambda: torch.npusim.memory_allocated(7),
    "properties": lambda: torch.npusim.get_device_properties(7),
    "efficient zeros": lambda: torch._efficientzerotensor((2,), device="npusim:7"),
    "load": lambda: torch.UntypedStorage(8, device="npusim:7"),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_out_of_range_is_refused(name):
    """torch's core does not look at the index: every way in must."""
    with pytest.raises((RuntimeError, ValueError, AssertionError), match=r"(?s)7|nvalid device"):
        INDICES[name]()
    assert torch.npusim.current_device() == 0
    assert ones().sum().item() == 3


# --- The second device ----------------------------------------------------------------------------

MAKERS = {
    "native": lambda x: x + x,
    "number": lambda x: x * 2.0,
    "unary": lambda x: x.exp(),
    "reduction": lambda x: x.sum(),
    "product": lambda x: x[None] @ x[:, None],
    "fallback": lambda x: x.cumsum(0),
    "fallback pair": lambda x: x.sort()[1],
    "clone": lambda x: x.clone(),
    "new": lambda x: x.new_zeros(2),
    "like": lambda x: torch.empty_like(x),
    "random": lambda x: torch.rand_like(x),
    "nonzero": lambda x: x.nonzero(),
    "item": lambda x: torch.tensor(x.sum().item(), device=x.device),
    "resize": lambda x: x.clone().resize_(900),
    "out": lambda x: torch.cumsum(x, 0, out=torch.empty(0, device=x.device)),
    "conv": lambda x: torch.conv1d(x[None, None], x[None, None, :2]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_results_lie_where_their_operands_lie(name):
    x = ones(SECOND)
    torch.npusim.synchronize(0)
    before = torch.npusim.memory_allocated(0), torch.npusim.memory_allocated(1)
    result = MAKERS[name](x)
    assert result.device == torch.device(SECOND)
    assert torch.npusim.memory_allocated(0) == before[0]
    assert torch.npusim.memory_allocated(1) > before[1]
    assert torch.npusim.current_device() == 0
    assert torch.npusim.current_stream(0).query()  # no command went to the wrong device


def sparse_coo(device):
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0])
    return torch.sparse_coo_tensor(indices.to(device), values.to(device), (2, 2))


def quantized(device):
    return torch.quantize_per_tensor(torch.eye(3, device=device), 0.5, 1, torch.quint8)


def per_channel(device):
    scales, zero_points = torch.full((3,), 0.5, device=device), torch.zeros(3, device=device).long()
    return torch.quantize_per_channel(
        torch.eye(3, device=device), scales, zero_points, 0, torch.qint8
    )


def nested(device, layout=torch.strided):
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=device, layout=layout)


EYE = torch.eye(4)
COMPRESSED = {"csr": None, "csc": None, "bsr": (2, 2), "bsc": (2, 2)}

# Ways to make a tensor of a kind on a device: by its name, of parts there, of a tensor there, or by
# moving a host tensor. Results are lists, so that each of them is looked at.
CONSTRUCTIONS = {
    "coo of members": lambda d: [sparse_coo(d), sparse_coo(d).coalesce().indices()],
    "coo of host members": lambda d: [torch.sparse_coo_tensor([[0]], [1.0], (2,), device=d)],
    "coo without size": lambda d: [
        torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=d), torch.ones(2, device=d))
    ],
    "coo without members": lambda d: [torch.sparse_coo_tensor((2, 2), device=d)],
    "coo, checked": lambda d: [
        torch.sparse_coo_tensor(
            torch.tensor([[0, 1]], device=d), torch.ones(2, device=d), (2,), check_invariants=True
        )
    ],
    "coo, with size": lambda d: [
        torch.sparse_coo_tensor(torch.tensor([[0]], device=d), torch.ones(1, device=d), (2,))
    ],
    "coo, moved": lambda d: [EYE.to_sparse().to(d), EYE.to_sparse().npusim(torch.device(d).index)],
    "coo, moved, converted": lambda d: [EYE.to_sparse().to(d, torch.float64)],
    "coo, cloned": lambda d: [sparse_coo(d).clone(), sparse_coo(d).detach()],
    "coo of dense": lambda d: [EYE.to(d).to_sparse(), EYE.to(d).to_sparse(1)],
    "coo, empty": lambda d: [
        torch.empty((2, 2), layout=torch.sparse_coo, device=d),
        torch.zeros((2, 2), layout=torch.sparse_coo, device=d),
        torch.zeros((0, 2), layout=torch.sparse_coo, device=d),
    ],
    "coo, like": lambda d: [
        torch.empty_like(sparse_coo(d)),
        torch.zeros_like(sparse_coo(d)),
        torch.zeros_like(sparse_coo("cpu"), device=d),
        torch.zeros_like(sparse_coo("npusim:0"), device=d),
    ],
    "coo, new": lambda d: [
        sparse_coo(d).new_zeros((3,)),
        sparse_coo(d).new_empty((3,)),
        sparse_coo(d).new(),
        torch.ones(2, device=d).new_zeros((2, 2), layout=torch.sparse_coo),
    ],
    "coo, resized": lambda d: [
        sparse_coo(d).sparse_resize_((3, 3), 2, 0),
        sparse_coo(d).sparse_resize_and_clear_((3,), 1, 0),
    ],
    "coo, computed": lambda d: [
        sparse_coo(d) + sparse_coo(d),
        sparse_coo(d) * 2,
        torch.sparse.mm(sparse_coo(d), sparse_coo(d)),
        torch.cat([sparse_coo(d), sparse_coo(d)]),
        sparse_coo(d).t(),
        sparse_coo(d).to_dense(),
        torch.sin(sparse_coo(d), out=torch.zeros_like(sparse_coo(d))),
        sparse_coo(d).select(0, 1),
        torch.sparse.softmax(sparse_coo(d), 1),
    ],
    "coo, copied": lambda d: [torch.zeros_like(sparse_coo(d)).copy_(sparse_coo("cpu"))],
    "compressed": lambda d: [
        made
        for kind, block in COMPRESSED.items()
        for layout in [getattr(torch, f"sparse_{kind}")]
        for made in (
            EYE.to_sparse(layout=layout, blocksize=block).to(d),
            EYE.to(d).to_sparse(layout=layout, blocksize=block),
            EYE.to(d).to_sparse(layout=layout, blocksize=block).clone(),
            torch.zeros_like(EYE.to(d).to_sparse(layout=layout, blocksize=block)),
            EYE.to(d).to_sparse(layout=layout, blocksize=block).to_dense(),
            EYE.to(d).to_sparse(layout=layout, blocksize=block) * 2,
        )
    ],
    "compressed of members": lambda d: [
        torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2], device=d), torch.tensor([0, 1], device=d), EYE[0, :2].to(d)
        ),
        torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], device=d),
        torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], device=d),
        torch.sparse_bsr_tensor([0, 1], [0], [[[1.0]]], device=d),
        torch.empty((2, 2), layout=torch.sparse_csr, device=d),
        torch.zeros((2, 2), layout=torch.sparse_csc, device=d),
        sparse_coo(d).to_sparse_csr(),
        sparse_coo(d).to_sparse_csr().to_sparse(),
    ],
    "quantized": lambda d: [
        quantized(d),
        quantized("cpu").to(d),
        quantized(d).clone(),
        quantized(d).dequantize(),
        torch.empty_like(quantized(d)),
        torch._empty_affine_quantized((2,), scale=1.0, zero_point=0, dtype=torch.qint8, device=d),
        quantized(d)[1:],
        quantized(d).reshape(9).relu(),
        torch.cat([quantized(d), quantized(d)]),
    ],
    "quantized by channel": lambda d: [
        made
        for tensor in (per_channel(d), per_channel("cpu").to(d), per_channel(d).clone())
        for made in (tensor, tensor.q_per_channel_scales(), tensor.dequantize())
    ],
    "nested": lambda d: [
        nested(d),
        nested("cpu").to(d),
        nested(d).clone(),
        nested(d) * 2,
        *nested(d).unbind(),
        torch.zeros_like(nested(d)),
        torch.empty_like(nested(d)),
        torch.nested.to_padded_tensor(nested(d), 0.0),
        torch.nested.as_nested_tensor([torch.ones(2, device=d)]),
        nested(d).values(),
    ],
    "jagged": lambda d: [
        nested(d, torch.jagged),
        nested("cpu", torch.jagged).to(d),
        nested(d, torch.jagged).clone(),
        nested(d, torch.jagged).values(),
        nested(d, torch.jagged).offsets(),
    ],
    "dense": lambda d: [
        torch.tensor([1.0, 2.0], device=d),
        torch.tensor(3, device=d),
        torch.as_tensor([1], device=d),
        torch.scalar_tensor(2.0, device=d),
        torch.empty(2, device=d),
        torch.empty_strided((2,), (1,), device=d),
        torch.empty_permuted((2, 3), (1, 0), device=d),
        torch.full((2,), 1.0, device=d),
        torch.arange(3, device=d),
        torch.linspace(0, 1, 3, device=d),
        torch.eye(3, device=d),
        torch.tril_indices(3, 3, device=d),
        torch.complex(torch.ones(2, device=d), torch.ones(2, device=d)),
        torch.hann_window(4, device=d),
        torch._efficientzerotensor((2,), device=d),
        torch.ones(2).to(d, non_blocking=True),
        torch.ones(2, device="npusim:0").to(d),
        torch.vander(torch.ones(2, device=d)),
        torch.zeros(2, device=d)._lazy_clone().add_(1),
        torch.from_dlpack(torch.ones(2, device=d)),
    ],
    "like and new": lambda d: [
        make(torch.ones(2, 2, device=d))
        for make in (
            *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like),
            *(torch.randn_like, lambda x: torch.full_like(x, 2), lambda x: x.new([1.0])),
            *(lambda x: x.new_empty(2), lambda x: x.new_zeros(2), lambda x: x.new_ones(2)),
            *(lambda x: x.new_full((2,), 1.0), lambda x: x.new_tensor([1.0])),
            *(lambda x: x.new_empty_strided((2,), (1,)), lambda x: torch.randint_like(x, 5)),
        )
    ],
    "drawn": lambda d: [
        torch.rand(3, device=d),
        torch.rand(3, device=d, generator=torch.Generator(d).manual_seed(1)),
        torch.randn(3, generator=torch.Generator(d), device=d),
        torch.randint(5, (3,), device=d),
        torch.randperm(5, device=d),
        torch.normal(torch.ones(3, device=d), 1.0),
        torch.bernoulli(torch.full((3,), 0.5, device=d)),
        torch.multinomial(torch.ones(3, device=d), 2),
        torch.nn.functional.dropout(torch.ones(5, device=d)),
        torch._sample_dirichlet(torch.ones(3, device=d)),
        torch.poisson(torch.ones(3, device=d)),
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONSTRUCTIONS)
def test_a_construction_takes_the_device_that_it_is_given(kind):
    """Whichever is current: that lends nothing and gets no command."""
    torch.npusim.synchronize(0)
    torch.npusim.reset_peak_memory_stats(0)
    before = torch.npusim.memory_allocated(0)
    for number, made in enumerate(CONSTRUCTIONS[kind](SECOND)):
        assert made.device == torch.device(SECOND), number
        assert str(made.device) in repr(made), number
        assert torch.npusim.current_device() == 0, number
    from_first = kind in {"dense", "coo, like"}  # which move a tensor of the first device
    assert from_first or torch.npusim.max_memory_allocated(0) == before
    assert from_first or torch.npusim.current_stream(0).query()


def test_storages_are_made_where_they_are_asked_for():
    for storage in (
        torch.UntypedStorage(8, device=SECOND),
        torch.UntypedStorage(0, device=SECOND),
        torch.ones(2, device=SECOND).untyped_storage().clone(),
        torch.ones(2).untyped_storage().to(device=SECOND),
    ):
        assert storage.device == torch.device(SECOND)
        storage.resize_(64)
        assert storage.device == torch.device(SECOND)


def test_sparse_results_lie_on_the_device_of_their_operands():
    x = torch.eye(3)
    moved = x.to("npusim:1")
    with torch.npusim.device(0):
        sparse = moved.to_sparse()
    assert sparse.device == sparse.indices().device == torch.device("npusim:1")
    assert torch.equal(sparse.to_dense().cpu(), x)


def test_draws_into_host_tensors_are_refused():
    p = torch.full((3,), 0.5, device="npusim")
    for draw in (
        lambda: torch.bernoulli(p, out=torch.empty(3)),
        lambda: torch.empty(3).bernoulli_(p),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            draw()
    assert torch.empty(3, device="npusim").bernoulli_(p.cpu()).device.type == "npusim"
