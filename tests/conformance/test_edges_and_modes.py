# SPDX-License-Identifier: BSD-3-Clause
"""Properties of rare inputs, numbers and modes: each finds the defect it is made for.

As in test_properties.py, a wrong operator is planted in the database, on npusim alone.
"""

import torch
from conformance.test_properties import ask, assert_fails, worker

from npusim_conformance.verdict import Status

__all__ = ["ask", "worker"]  # fixtures

# --- edges


def test_long_results_lie_otherwise(ask):
    def wrong(right, x, **options):
        y = right(x, **options)
        return y.mT.contiguous().mT if y.dim() > 1 else y

    assert_fails(ask("op:digamma/edges", op=wrong), "strides")


def test_a_mask_is_written_to_in_place_on_long_inputs(ask):
    def wrong(right, x, mask, value):
        right(x, mask, value)
        if x.numel() > 16:
            mask.logical_not_()
        return x

    assert_fails(ask("op:masked_fill/edges", inplace_variant=wrong), "an operand after the call")


# --- numbers


def test_numbers_are_named(ask):
    assert ask("op:eq/numbers/float32").message == "aten.eq.Tensor(other)"


def test_a_comparison_that_stores_its_number_in_a_byte(ask):
    original = torch.library.get_kernel("aten::eq.Scalar", "PrivateUse1")

    def narrow(keys, x, other):
        if not -128 <= other < 128:
            raise RuntimeError("value cannot be converted to type int8_t without overflow")
        return original.call_boxed(keys, x, other)

    library = torch.library.Library("aten", "IMPL")
    library.impl("eq.Scalar", narrow, "PrivateUse1", with_keyset=True, allow_override=True)
    try:
        assert_fails(ask("op:eq/numbers/float32"), "int8_t")
        assert ask("op:eq/forward/float32").status is Status.PASS
    finally:
        library._destroy()
    assert ask("op:eq/numbers/float32").status is Status.PASS


# --- modes


def test_an_operator_that_does_nothing_under_inference_mode(ask):
    def wrong(right, x, y):
        return x if torch.is_inference_mode_enabled() else right(x, y)

    assert_fails(ask("op:mul/modes/float32", inplace_variant=wrong), "in place under inference_")


def test_a_value_that_is_wrong_under_deterministic_algorithms(ask):
    def wrong(right, *args, **kwargs):
        is_wrong = torch.are_deterministic_algorithms_enabled()
        return right(*args, **kwargs) * (2 if is_wrong else 1)

    assert_fails(ask("op:index_add/modes/float32", op=wrong), "under deterministic algorithms")


def test_equal_indexes_under_deterministic_algorithms(ask):
    def wrong(right, x, dim, index, source, **named):
        is_equal = index.numel() > 1 and index.unique().numel() == 1
        if torch.are_deterministic_algorithms_enabled() and is_equal:
            return right(x, dim, index[-1:], source.select(dim, -1).unsqueeze(dim), **named)
        return right(x, dim, index, source, **named)

    assert_fails(ask("op:index_add/modes/float32", op=wrong), "under deterministic algorithms")


def test_an_operator_may_have_no_deterministic_form(ask):
    def refuses(right, *args, **kwargs):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("index_add does not have a deterministic implementation")
        return right(*args, **kwargs)

    assert ask("op:index_add/modes/float32", op=refuses).status is Status.PASS


# --- edges: lengths, orders of dimensions


def test_a_rest_of_three_that_is_left_out(ask):
    def wrong(right, x, y):
        found = right(x, y)
        if found.dim() == 1 and len(found) > 64 and len(found) % 4 == 3:
            found[-3:] = x[-3:]
        return found

    assert_fails(ask("op:mul/edges", op=wrong), "largest error")


def test_dimensions_in_falling_order(ask):
    def wrong(right, x, dim=None, **named):
        falls = isinstance(dim, tuple) and len(dim) > 1 and dim[0] % x.dim() > dim[1] % x.dim()
        return right(x.narrow(dim[0], 0, 1) if falls else x, dim, **named)

    assert_fails(ask("op:amax/edges", op=wrong), "largest error")


def test_in_place_along_axes(ask):
    def wrong(right, x, *rest, **named):
        if x.dim() and x.stride(-1) == 2:  # with gaps, as no sample of the database lies
            return x
        return right(x, *rest, **named)

    assert_fails(ask("op:cumsum/edges", inplace_variant=wrong), "in place")


def test_out_between_memory_that_stays(ask):
    def wrong(right, x, *rest, out=None, **named):
        if out is None:
            return right(x, *rest, **named)
        whole = torch.empty(0, dtype=out.dtype, device=out.device).set_(out.untyped_storage())
        whole[0] = 0
        return right(x, *rest, out=out, **named)

    assert_fails(ask("op:cumsum/edges", op=wrong), "memory between elements is written")


def test_gradients_along_axes(ask):
    def wrong(right, x, dim, **named):
        found = right(x, dim, **named)
        return found * 2 - found.detach() if dim < 0 and x.dim() > 1 else found

    assert_fails(ask("op:cumsum/edges", op=wrong), "gradient")


def test_whole_numbers_along_the_edges(ask):
    def wrong(right, x, indices, values, accumulate=False):
        return right(x, indices, values, accumulate and x.is_floating_point())

    assert_fails(ask("op:index_put/edges", op=wrong), "elements differ")


def test_two_arguments_at_once(ask):
    def wrong(right, x, *rest, **named):
        if named.get("keepdim") and named.get("correction") is not None:
            named["correction"] = 1
        return right(x, *rest, **named)

    assert_fails(ask("op:var/edges", op=wrong), "largest error")


def test_whole_numbers_that_no_float_holds(ask):
    def wrong(right, x, y, **named):
        if x.dtype == torch.int64 and y.dtype == torch.int64:
            return right(x.float().long(), y, **named)
        return right(x, y, **named)

    assert_fails(ask("op:div.floor_rounding/edges", op=wrong), "elements differ")
