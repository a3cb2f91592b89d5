# SPDX-License-Identifier: BSD-3-Clause
"""Sparse COO and compressed tensors on npusim: constructors, accessors, copies, arithmetic."""

import pytest
import torch
from oracle import DEVICE, assert_same, compare

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def coo(device="cpu", dtype=torch.float32):
    """With one coordinate twice, so not coalesced."""
    indices = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]], device=device)
    values = torch.tensor([3.0, 4.0, 5.0, 0.5], device=device, dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (2, 3))


def test_coo_constructors_and_accessors():
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([1.0, 2.0])
    made = torch.sparse_coo_tensor(indices, values, (2, 3), device=DEVICE)
    assert_same(torch.sparse_coo_tensor(indices, values, (2, 3)), made)
    assert_same(made.cpu(), torch.sparse_coo_tensor(indices.to(DEVICE), values.to(DEVICE)))
    assert (made._nnz(), made.sparse_dim(), made.dense_dim()) == (2, 2, 0)
    assert not made.is_coalesced()
    tensor = coo(DEVICE)
    assert tensor._values().data_ptr() == tensor._values().data_ptr()
    assert_same(
        torch.zeros(2, 3, layout=torch.sparse_coo), torch.sparse_coo_tensor((2, 3), device=DEVICE)
    )


def test_values_are_the_member_and_not_a_copy():
    tensor = coo(DEVICE)
    tensor._values().fill_(7)
    assert tensor._values().cpu().tolist() == [7, 7, 7, 7]
    csr = coo(DEVICE).to_sparse_csr()
    csr.values().fill_(7)
    assert csr.values().cpu().tolist() == [7, 7, 7]


def test_a_result_on_a_member_shares_its_storage():
    """As on CPU, where permute() keeps the values and makes new indices."""
    for tensor in (coo(), coo(DEVICE)):
        assert tensor.permute(1, 0)._values().data_ptr() == tensor._values().data_ptr()


def test_coalesce_and_dense():
    compare(lambda s: (s.coalesce(), s.to_dense(), s.coalesce().values()), coo())
    compare(torch.Tensor.to_sparse, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_compressed_layouts(layout):
    def run(dense):
        block = (2, 2) if "bs" in str(layout) else None
        made = dense.to_sparse(layout=layout, blocksize=block)
        is_by_rows = layout in (torch.sparse_csr, torch.sparse_bsr)
        pointers = made.crow_indices() if is_by_rows else made.ccol_indices()
        indices = made.col_indices() if is_by_rows else made.row_indices()
        rebuilt = torch.sparse_compressed_tensor(
            pointers, indices, made.values(), size=(4, 4), layout=layout
        )
        return made, made.clone(), made.to_dense(), rebuilt

    dense = torch.tensor([[0.0, 2.0, 0, 0], [3.0, 0.0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 4]])
    got = compare(run, dense)[0]
    expected = run(dense)[0]
    assert_same(expected, expected.to(DEVICE))
    assert_same(got.cpu(), got)


def test_round_trips():
    assert_same(coo(), coo().to(DEVICE))
    assert_same(coo(DEVICE).cpu(), coo(DEVICE))
    target = torch.zeros(2, 3, layout=torch.sparse_coo, device=DEVICE)
    target.copy_(coo())
    assert_same(coo(), target)
    compare(lambda s: (s.clone(), s.double()), coo())


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
    compare(operate, coo(), torch.linspace(-1, 1, 6).reshape(3, 2))


def test_in_place():
    compare(lambda s, other: s.mul_(3).add_(other).zero_().add_(other), coo(), coo())


def test_gradients():
    weight = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()

    def run(sparse, weight):
        sparse = sparse.coalesce().requires_grad_()
        loss = torch.sparse.mm(sparse, weight).sin().sum()
        return torch.autograd.grad(loss, (sparse, weight))

    compare(run, coo(), weight)


def test_sparse_embedding_and_optimizer():
    def steps(embedding, tokens):
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            embedding(tokens).sin().sum().backward()
            optimizer.step()

    compare(steps, torch.nn.Embedding(6, 3, sparse=True), torch.tensor([1, 4, 1]))


def test_printing():
    assert "layout=torch.sparse_coo" in repr(coo(DEVICE))
    assert repr(coo(DEVICE)).replace("device='npusim:0', ", "") == repr(coo())
    assert "layout=torch.sparse_csr" in repr(coo(DEVICE).to_sparse_csr())


def test_nothing_leaks():
    before = torch.npusim.memory_allocated()
    tensor = coo(DEVICE)
    result = torch.sparse.mm(tensor, torch.ones(3, 2, device=DEVICE)) + tensor.to_dense().sum()
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

            expected, got = run("cpu"), run(DEVICE)
            if isinstance(expected, str):
                assert isinstance(got, str), name
            else:
                assert_same(expected, got)
                if got._nnz() == 3:
                    checked.add(name)
    assert len(checked) > 20


@pytest.mark.parametrize("rounding", [None, "floor", "trunc"])
@pytest.mark.parametrize("divisor", [-0.8, 0.3])
def test_division_of_an_uncoalesced_tensor(rounding, divisor):
    """Rounding is not linear: the summands of an element come together first."""

    def run(given, out):
        torch.div(given, divisor, rounding_mode=rounding, out=out)
        made = [
            out,
            torch.div(given, divisor, rounding_mode=rounding),
            given.clone().floor_divide_(divisor),
            given.div_(divisor, rounding_mode=rounding),
        ]
        return made, [result.to_dense() for result in made]

    compare(run, coo(), torch.zeros(5, 3).to_sparse())


@pytest.mark.parametrize("size", [(2, 3, 4), (0,), (1, 3), (2, 3)])
def test_out_takes_any_shape(size):
    for tensor in (coo(DEVICE), coo(DEVICE).coalesce()):
        torch.zeros(size, out=tensor)
        assert_same(torch.zeros(size).to_sparse(), tensor)
        tensor.copy_(torch.ones(size).to_sparse())
        assert_same(torch.ones(size).to_sparse(), tensor)


def test_written_operands_that_are_read_too():
    for device in ("cpu", DEVICE):
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

    expected, got = make("cpu"), make(DEVICE)
    if isinstance(expected, str):
        assert got == expected
    else:
        assert_same(expected, got)
