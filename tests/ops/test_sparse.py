# SPDX-License-Identifier: BSD-3-Clause
"""Sparse COO and compressed tensors on npusim: constructors, accessors, copies, arithmetic."""

import pytest
import torch

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def coo(device="cpu", dtype=torch.float32):
    """With one coordinate twice, so not coalesced."""
    indices = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]], device=device)
    values = torch.tensor([3.0, 4.0, 5.0, 0.5], device=device, dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (2, 3))


def members(tensor):
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def assert_same(expected, got, device=DEV):
    assert got.device.type == device
    assert got.layout == expected.layout
    assert got.shape == expected.shape
    for ours, theirs in zip(members(got), members(expected), strict=True):
        assert ours.device.type == device
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)


def test_coo_constructors_and_accessors():
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([1.0, 2.0])
    made = torch.sparse_coo_tensor(indices, values, (2, 3), device=DEV)
    assert_same(torch.sparse_coo_tensor(indices, values, (2, 3)), made)
    assert_same(made.cpu(), torch.sparse_coo_tensor(indices.to(DEV), values.to(DEV)))
    assert (made._nnz(), made.sparse_dim(), made.dense_dim()) == (2, 2, 0)
    assert not made.is_coalesced()
    tensor = coo(DEV)
    assert tensor._values().data_ptr() == tensor._values().data_ptr()
    assert_same(
        torch.zeros(2, 3, layout=torch.sparse_coo), torch.sparse_coo_tensor((2, 3), device=DEV)
    )


def test_values_are_the_member_and_not_a_copy():
    tensor = coo(DEV)
    tensor._values().fill_(7)
    assert tensor._values().cpu().tolist() == [7, 7, 7, 7]
    csr = coo(DEV).to_sparse_csr()
    csr.values().fill_(7)
    assert csr.values().cpu().tolist() == [7, 7, 7]


def test_a_result_on_a_member_shares_its_storage():
    """As on CPU, where permute() keeps the values and makes new indices."""
    for tensor in (coo(), coo(DEV)):
        assert tensor.permute(1, 0)._values().data_ptr() == tensor._values().data_ptr()


def test_coalesce_and_dense():
    tensor, expected = coo(DEV), coo()
    assert_same(expected.coalesce(), tensor.coalesce())
    assert tensor.coalesce().is_coalesced()
    assert_same(expected.to_dense(), tensor.to_dense())
    assert_same(expected.coalesce().values(), tensor.coalesce().values())
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert_same(dense.to_sparse(), dense.to(DEV).to_sparse())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_compressed_layouts(layout):
    dense = torch.tensor([[0.0, 2.0, 0, 0], [3.0, 0.0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 4]])
    block = (2, 2) if "bs" in str(layout) else None
    expected = dense.to_sparse(layout=layout, blocksize=block)
    got = dense.to(DEV).to_sparse(layout=layout, blocksize=block)
    assert_same(expected, got)
    assert_same(expected, expected.to(DEV))
    assert_same(expected, got.cpu(), "cpu")
    assert_same(expected, got.clone())
    assert_same(dense, got.to_dense())
    rebuilt = torch.sparse_compressed_tensor(*members(got), size=(4, 4), layout=layout)
    assert_same(expected, rebuilt)


def test_round_trips():
    assert_same(coo(), coo().to(DEV))
    assert_same(coo(), coo(DEV).cpu(), "cpu")
    assert_same(coo(), coo(DEV).clone())
    target = torch.zeros(2, 3, layout=torch.sparse_coo, device=DEV)
    target.copy_(coo())
    assert_same(coo(), target)
    assert_same(coo().double(), coo(DEV).double())


@pytest.mark.parametrize(
    "operate",
    [
        lambda s, d: s + s,
        lambda s, d: s + s.coalesce(),
        lambda s, d: d.t() + s,
        lambda s, d: s * 2.5,
        lambda s, d: s.coalesce() * s.coalesce(),
        lambda s, d: s / 2,
        lambda s, d: -s,
        lambda s, d: s.coalesce().sin(),
        lambda s, d: torch.sparse.mm(s, d),
        lambda s, d: torch.sparse.mm(s, s.t()),
        lambda s, d: s @ d,
        lambda s, d: s.coalesce() @ d[:, 0],
        lambda s, d: s.t(),
        lambda s, d: torch.sparse.sum(s, 0),
        lambda s, d: torch.sparse.sum(s),
        lambda s, d: torch.sparse.softmax(s, 1),
        lambda s, d: d.t().sparse_mask(s.coalesce()),
        lambda s, d: torch.cat([s, s]),
        lambda s, d: s.unsqueeze(0),
        lambda s, d: s.coalesce().to_sparse_csr() @ d,
        lambda s, d: s.coalesce().to_sparse_csr() @ d[:, 1],
        lambda s, d: s.coalesce().to_sparse_csr() + s.coalesce().to_sparse_csr(),
        lambda s, d: s.coalesce().to_sparse_csr().sum(),
    ],
)
def test_arithmetic(operate):
    dense = torch.linspace(-1, 1, 6).reshape(3, 2)
    assert_same(operate(coo(), dense), operate(coo(DEV), dense.to(DEV)))


def test_in_place():
    expected, got = coo(), coo(DEV)
    for tensor in (expected, got):
        tensor.mul_(3)
        tensor.add_(coo(tensor.device))
        tensor.zero_()
        tensor.add_(coo(tensor.device))
    assert_same(expected, got)


def test_gradients():
    dense = torch.linspace(-1, 1, 6).reshape(3, 2)

    def grads(device):
        sparse = coo(device).coalesce().requires_grad_()
        weight = dense.detach().to(device).requires_grad_()
        torch.sparse.mm(sparse, weight).sin().sum().backward()
        return sparse.grad, weight.grad

    for expected, got in zip(grads("cpu"), grads(DEV), strict=True):
        assert_same(expected, got)


def test_sparse_embedding_and_optimizer():
    weight = torch.randn(6, 3)
    tokens = torch.tensor([1, 4, 1])

    def step(device):
        embedding = torch.nn.Embedding.from_pretrained(
            weight.detach().clone().to(device), freeze=False, sparse=True
        )
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            embedding(tokens.to(device)).sin().sum().backward()
            optimizer.step()
        return embedding.weight.detach()

    assert_same(step("cpu"), step(DEV))


def test_printing():
    assert "layout=torch.sparse_coo" in repr(coo(DEV))
    assert repr(coo(DEV)).replace("device='npusim:0', ", "") == repr(coo())
    assert "layout=torch.sparse_csr" in repr(coo(DEV).to_sparse_csr())


def test_nothing_leaks():
    before = torch.npusim.memory_allocated()
    tensor = coo(DEV)
    result = torch.sparse.mm(tensor, torch.ones(3, 2, device=DEV)) + tensor.to_dense().sum()
    del tensor, result
    assert torch.npusim.memory_allocated() == before


@pytest.mark.parametrize("layout", ["Sparse", "SparseCsr"])
def test_no_composite_shadows_a_sparse_kernel(layout):
    """Where CPU has a sparse kernel and a composite exists too, npusim has its own entry."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    pinning = {"aten::is_pinned", "aten::_pin_memory"}  # questions about host memory
    missing = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and name not in pinning
        if has(name, f"{layout}CPU") and any(has(name, key) for key in composites)
        if not has(name, f"{layout}PrivateUse1")
    ]
    assert missing == []


# --- Written operands -----------------------------------------------------------------------------


def test_a_pointwise_result_goes_into_out():
    """Operators of one operand resize the members of `out` in their places."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [
        name.removeprefix("aten::").removesuffix(".out")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and name.endswith(".out") and has(name, "SparseCPU")
    ]
    checked = set()
    for name in names:
        operator = getattr(torch.ops.aten, name).out
        tensors = [argument.name for argument in operator._schema.arguments if not argument.is_out]
        if tensors != ["self"]:
            continue
        for dtype, nonzeros in [(torch.float32, 0), (torch.float32, 1), (torch.float64, 3)]:

            def run(device, nonzeros=nonzeros, dtype=dtype, operator=operator):
                out = torch.ones(nonzeros, dtype=dtype).diag().to_sparse()
                out = out.sparse_resize_and_clear_((3, 3), 2, 0) if not nonzeros else out
                out = out.to(device)
                try:
                    operator(coo(device, dtype), out=out)
                except RuntimeError as error:
                    return str(error)
                return out

            expected, got = run("cpu"), run(DEV)
            if isinstance(expected, str):
                assert isinstance(got, str), name
            else:
                assert_same(expected, got)
                assert got.is_coalesced() == expected.is_coalesced()
                if got._nnz() == 3:
                    checked.add(name)
    assert len(checked) > 20


@pytest.mark.parametrize("rounding", [None, "floor", "trunc"])
@pytest.mark.parametrize("divisor", [-0.8, 0.3])
def test_division_of_an_uncoalesced_tensor(rounding, divisor):
    """Rounding is not linear: the summands of an element come together first."""

    def run(device):
        in_place, out = coo(device), torch.zeros(5, 3).to_sparse().to(device)
        in_place.div_(divisor, rounding_mode=rounding)
        torch.div(coo(device), divisor, rounding_mode=rounding, out=out)
        floored = coo(device).floor_divide_(divisor)
        return in_place, out, floored, torch.div(coo(device), divisor, rounding_mode=rounding)

    for expected, got in zip(run("cpu"), run(DEV), strict=True):
        assert_same(expected, got)
        assert_same(expected.to_dense(), got.to_dense())
        assert got.is_coalesced() == expected.is_coalesced()


@pytest.mark.parametrize("size", [(2, 3, 4), (0,), (1, 3), (2, 3)])
def test_out_takes_any_shape(size):
    for tensor in (coo(DEV), coo(DEV).coalesce()):
        torch.zeros(size, out=tensor)
        assert_same(torch.zeros(size).to_sparse(), tensor)
        tensor.copy_(torch.ones(size).to_sparse())
        assert_same(torch.ones(size).to_sparse(), tensor)


def test_written_operands_that_are_read_too():
    for device in ("cpu", DEV):
        tensor = coo(device).coalesce()
        assert torch.neg(tensor, out=tensor) is tensor
        assert torch.add(tensor, tensor, out=tensor) is tensor
        assert tensor.to_dense().tolist() == [[0, 0, -6], [-8, 0, -11]]


@pytest.mark.parametrize("is_coalesced", [None, False, True])
@pytest.mark.parametrize(
    "indices",
    [[[0, 1], [2, 0]], [[1, 0], [0, 2]], [[0, 0], [2, 2]], [[0, 1], [2, 3]], [[0, 1], [-1, 0]]],
    ids=str,
)
def test_checked_invariants(indices, is_coalesced):
    def make(device):
        members = torch.tensor(indices, device=device), torch.ones(2, device=device)
        try:
            return torch.sparse_coo_tensor(
                *members, (2, 3), check_invariants=True, is_coalesced=is_coalesced
            )
        except RuntimeError as error:
            return str(error)

    expected, got = make("cpu"), make(DEV)
    if isinstance(expected, str):
        assert got == expected
    else:
        assert_same(expected, got)
        assert got.is_coalesced() == expected.is_coalesced()
