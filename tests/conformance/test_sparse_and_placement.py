# SPDX-License-Identifier: BSD-3-Clause
"""Properties about sparse operands, lazy clones, host scalars and internal overloads.

Each finds the defect it is made for, and accuses no right device: defects are planted in operators
of the database.
"""

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.subjects import subjects
from npusim_conformance.properties import host_scalars, internals, sparse
from npusim_conformance.properties.copy_on_write import CopyOnWrite
from npusim_conformance.verdict import Mismatch

__all__ = ["bench"]


def is_sparse(tensor):
    return tensor.layout != torch.strided


# --- sparse


def lost_out(right, x, *args, out=None, **kwargs):
    if out is None:
        return right(x, *args, **kwargs)
    return out if is_sparse(out) else right(x, *args, out=out, **kwargs)


def refused_out(right, x, *args, out=None, **kwargs):
    if out is not None and is_sparse(out):
        raise RuntimeError("no sparse out=")
    return right(x, *args, **kwargs)


def doubled(right, x, *args, **kwargs):
    result = right(x, *args, **kwargs)
    return result * 2 if is_sparse(result) and "out" not in kwargs else result


@pytest.mark.parametrize(
    ("defect", "words"),
    [(lost_out, "out="), (refused_out, "no sparse out="), (doubled, "sparse operands")],
)
def test_sparse_out(bench, defect, words):
    bench.plant("neg", defect)
    outcome = bench.outcome("op:neg/sparse_out/float32")
    assert outcome.status is FAIL
    assert words in outcome.message


@pytest.mark.parametrize("property_", ["sparse_out", "sparse_inplace", "copy_on_write"])
@pytest.mark.parametrize("operator", ["neg", "mul"])
def test_the_cpu_is_right(bench, property_, operator):
    assert bench.status(f"op:{operator}/{property_}/float32", device="cpu") is PASS


def test_sparse_inplace_on_uncoalesced(bench, monkeypatch):
    info = torch_testing.operators()["neg"]
    right = info.inplace_variant

    def wrong(x):
        if x.is_npusim and is_sparse(x) and x.layout == torch.sparse_coo and not x.is_coalesced():
            return x.zero_()
        return right(x)

    monkeypatch.setattr(info, "inplace_variant", wrong)
    outcome = bench.outcome("op:neg/sparse_inplace/float32")
    assert outcome.status is FAIL
    assert "in place on an uncoalesced tensor" in outcome.message


def test_operators_that_take_nothing_sparse_are_not_accused(bench):
    outcome = bench.outcome("op:linalg.inv/sparse_out/float32")
    assert outcome.status is NA
    assert outcome.message == "the CPU takes no sample with sparse tensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_uncoalesced_has_duplicates_and_the_same_values(dtype):
    tensor = torch.tensor([[0, 1, 3], [2, 0, 5]]).to(dtype)
    made = sparse.uncoalesced(tensor)
    assert not made.is_coalesced()
    assert made._nnz() == 2 * int((tensor != 0).sum())
    assert torch.equal(made.coalesce().to_dense(), tensor)


# --- lazy clones


def test_a_write_through_a_lazy_clone_is_seen(monkeypatch):
    """Asked on the CPU: lazy clones that are no clones show themselves."""
    subject = subjects("op")["neg"]
    raw = torch_testing.sample_inputs(subject.info, torch.float32, False, 0)[0]
    sample = Sample(subject, 0, raw)
    CopyOnWrite._written(None, sample, torch.device("cpu"))
    monkeypatch.setattr(torch.Tensor, "_lazy_clone", lambda self: self.view_as(self))
    with pytest.raises(Mismatch, match="shows in the original"):
        CopyOnWrite._written(None, sample, torch.device("cpu"))


@pytest.mark.parametrize("name", sorted(sparse._UNWRITTEN_INDICES))
def test_a_compressed_result_that_nobody_has_written_is_not_compared(bench, name):
    assert bench.status(f"op:{name}/sparse_second_device/float32") is not FAIL


def test_upstream_new_ones_of_a_compressed_tensor_has_no_ones():
    # When it has, _UNWRITTEN_INDICES can go.
    assert torch.eye(3).to_sparse_csr().new_ones((3, 3))._nnz() == 0


# --- host scalars


def accepting(right, x, *args, **kwargs):
    return right(x, *(one.to(x.device) if torch.is_tensor(one) else one for one in args), **kwargs)


def refusing(right, *args, **kwargs):
    if len({one.device for one in args if torch.is_tensor(one)}) > 1:
        raise RuntimeError("all tensors on one device, please")
    return right(*args, **kwargs)


def wrong_with_scalars(right, *args, **kwargs):
    result = right(*args, **kwargs)
    return result + 1 if len({one.device for one in args if torch.is_tensor(one)}) > 1 else result


@pytest.mark.parametrize(
    ("operator", "defect", "words"),
    [
        ("addcdiv", accepting, "accepted, CUDA refuses it"),
        ("mul", refusing, "refused, CUDA takes it"),
        ("mul", wrong_with_scalars, "a 0-dim tensor of the host as tensor"),
    ],
)
def test_host_scalars(bench, operator, defect, words):
    bench.plant(operator, defect)
    outcome = bench.outcome(f"op:{operator}/host_scalars/float32")
    assert outcome.status is FAIL
    assert words in outcome.message


def test_host_scalars_of_a_right_device(bench):
    assert bench.status("op:mul/host_scalars/float32") is PASS
    assert bench.status("op:sin/host_scalars/float32") is NA


def test_the_table_names_operators_of_the_database():
    assert set(host_scalars.TAKEN) <= set(torch_testing.operators())


# --- internal overloads


def test_internal_overloads_are_found_by_name_and_arguments():
    found = internals._internals(torch.ops.aten.grid_sampler_2d.default)
    assert torch.ops.aten._grid_sampler_2d_cpu_fallback.default in found
    assert internals._internals(torch.ops.aten.t.default) == []
