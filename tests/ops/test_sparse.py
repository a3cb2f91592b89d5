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
        assert torch.equal(ours.cpu(), theirs)


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
    torch.manual_seed(0)
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
