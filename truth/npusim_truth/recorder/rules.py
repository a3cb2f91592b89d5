# SPDX-License-Identifier: BSD-3-Clause
"""The rule book's rows as calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .operators import DTYPES

#: A row of npusim's rule book by line: operators; dtypes or conditions; arguments; dtype of `out`.
#: T(2, 3) are ones of the dtype (float32 where the line has none), I ones of int64, Z zeros of it, X
#: one index, B int8, P float8, Q quantized numbers. " .out" and " _" go on with the operator before.
RULES = """\
mm .out; {ints}; T(4, 4), T(4, 4)
addmm .out _; {ints}; T(4, 4), T(4, 4), T(4, 4)
_addmm_activation .out; {ints}; T(4), T(4, 4), T(4, 4)
addmv .out _; {ints}; T(4), T(4, 4), T(4)
mv; {ints}; T(4, 4), T(4)
dot vdot; {ints}; T(4), T(4)
bmm .out; {ints}; T(1, 4, 4), T(1, 4, 4)
baddbmm .out _; {ints}; T(1, 4, 4), T(1, 4, 4), T(1, 4, 4)
addbmm .out _; {ints}; T(4, 4), T(1, 4, 4), T(1, 4, 4)
mm .out; {sparse}; T(4, 4).to_sparse(), T(4, 4)
addmm .out _; {sparse}; T(4, 4), T(4, 4).to_sparse(), T(4, 4)
_sparse_addmm; {sparse}; T(4, 4), T(4, 4).to_sparse(), T(4, 4)
hspmm; {sparse}; T(4, 4).to_sparse(), T(4, 4)
bmm .out; {sparse}; T(1, 4, 4).to_sparse(), T(1, 4, 4)
sspaddmm.out; Sparse; T(4, 4).to_sparse(), T(4, 4).to_sparse(), T(4, 4)
kthvalue.values topk .values; self.dim()>24; T({deep}), 1
median.dim .dim_values nanmedian.dim_values; self.dim()>24; T({deep}), -1
floor_divide .out _.Tensor remainder.Tensor .Tensor_out _.Tensor fmod.Tensor .Tensor_out _.Tensor; {ints}; T(4), T(4) - T(4)
floor_divide .out remainder.Tensor .Tensor_out fmod.Tensor .Tensor_out; bool; T(4), I(4) - I(4); int64
remainder.Scalar_Tensor; bool {ints}; 7, T(4) ^ T(4)
div.Tensor_mode .out_mode _.Tensor_mode; {ints}; T(4), T(4) - T(4), rounding_mode='floor'
div.Tensor_mode .out_mode; bool; T(4), I(4) - I(4), rounding_mode='floor'; int64
_int_mm .out; self.size(0)<=16; B(16, 16), B(16, 8); int32
_int_mm .out; self.size(1)%8; B(32, 12), B(12, 8); int32
_int_mm .out; mat2.size(1)%8; B(32, 16), B(16, 4); int32
_scaled_mm .out; capability<8.9; P(16, 16), P(16, 16).t(), T(), T(), out_dtype=torch.bfloat16; bfloat16
native_dropout_backward; bool {ints}; T(4), T(4).bool(), 2.0
convolution; int64 complex32; T(1, 1, 4, 4), T(1, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
convolution_backward; complex32; T(1, 1, 3, 3), T(1, 1, 4, 4), T(1, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
slow_conv3d_forward .output; any; T(1, 1, 4, 4, 4), T(1, 1, 2, 2, 2), [2, 2, 2], None, [1, 1, 1], [0, 0, 0]
avg_pool2d .out; int64; T(1, 1, 4, 4), [2, 2]
avg_pool3d .out; int64 float16 bfloat16; T(1, 1, 4, 4, 4), [2, 2, 2]
avg_pool3d_backward .grad_input; any float16 bfloat16; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None
max_pool2d_with_indices .out; {ints}; T(1, 1, 4, 4), [2, 2]
max_pool3d_with_indices .out; {ints}; T(1, 1, 4, 4, 4), [2, 2, 2]
max_pool3d_with_indices_backward .grad_input; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, Z(1, 1, 2, 2, 2)
_adaptive_avg_pool2d_backward; any; T(1, 1, 2, 2), T(1, 1, 4, 4)
_adaptive_avg_pool3d_backward; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4)
adaptive_max_pool2d_backward .grad_input; any; T(1, 1, 2, 2), T(1, 1, 4, 4), Z(1, 1, 2, 2)
fractional_max_pool2d_backward .grad_input; any; T(1, 1, 2, 2), T(1, 1, 4, 4), [2, 2], [2, 2], Z(1, 1, 2, 2)
fractional_max_pool3d_backward .grad_input; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], Z(1, 1, 2, 2, 2)
grid_sampler_2d_backward; any; T(1, 1, 2, 2), T(1, 1, 4, 4), T(1, 2, 2, 2), 0, 0, False, [True, True]
grid_sampler_3d_backward; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), T(1, 2, 2, 2, 3), 0, 0, False, [True, True]
_upsample_bilinear2d_aa .out; uint8 float16 bfloat16; T(1, 1, 4, 4), [8, 8], False
upsample_bilinear2d .out upsample_bicubic2d .out; uint8; T(1, 1, 4, 4), [8, 8], False
_upsample_lanczos2d_aa.out; any; T(1, 1, 4, 4), [8, 8], False
_upsample_bilinear2d_aa_backward .grad_input; any float16 bfloat16; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
_upsample_bicubic2d_aa_backward .grad_input _upsample_lanczos2d_aa_backward.grad_input; any; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
upsample_bilinear2d_backward .grad_input upsample_bicubic2d_backward .grad_input; any; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
upsample_linear1d_backward .grad_input; any; T(1, 1, 8), [8], [1, 1, 4], False
upsample_trilinear3d_backward .grad_input; any; T(1, 1, 8, 8, 8), [8, 8, 8], [1, 1, 4, 4, 4], False
reflection_pad1d_backward .grad_input replication_pad1d_backward .grad_input; any; T(1, 6), T(1, 4), [1, 1]
replication_pad2d_backward .grad_input; any; T(1, 6, 6), T(1, 4, 4), [1, 1, 1, 1]
reflection_pad3d_backward .grad_input replication_pad3d_backward .grad_input; any; T(1, 6, 6, 6), T(1, 4, 4, 4), [1, 1, 1, 1, 1, 1]
_ctc_loss_backward; any; T(1), T(4, 1, 3), I(1, 2), [4], [2], *torch.ops.aten._ctc_loss.default(T(4, 1, 3), I(1, 2), [4], [2]), 0
_ctc_loss_backward.Tensor; any; T(1), T(4, 1, 3), I(1, 2), torch.tensor([4]), torch.tensor([2]), *torch.ops.aten._ctc_loss.default(T(4, 1, 3), I(1, 2), [4], [2]), 0
_embedding_bag_backward; mode=2; T(1, 4), I(2), Z(1), Z(2), I(1), I(1, 4), 4, False, 2, False, None
_embedding_bag_dense_backward; mode=2; T(1, 4), I(2), Z(2), I(1), I(1, 4), 4, False, 2, None
bincount; weights; I(4), T(4)
histc .out; float16 bfloat16 float32 float64; T(4)
median.dim .dim_values nanmedian.dim_values; any; T(4), 0
put_; accumulate=1; T(4), I(1), T(1), True
index_reduce .out _; any; T(4), 0, I(1), T(1), 'prod'
scatter.reduce .reduce_out _.reduce; any; T(4), 0, I(4), T(4), reduce='add'
scatter.reduce .reduce_out _.reduce; reduce!=add; T(4), 0, I(4), T(4), reduce='multiply'
scatter.reduce .reduce_out _.reduce; bool complex32 complex64 complex128; T(4), 0, I(4), T(4), reduce='multiply'
scatter.value_reduce .value_reduce_out _.value_reduce; bool complex32 complex64 complex128; T(4), 0, I(4), 1, reduce='multiply'
scatter_reduce.two .two_out _.two; bool; T(4), 0, I(4), T(4), 'amax'
scatter_reduce.two .two_out _.two; reduce=prod; T(4), 0, I(4), T(4), 'prod'
nll_loss2d_forward .output; reduction!=0; T(1, 2, 1, 1), I(1, 1, 1), None, 1, -100
multi_margin_loss .out; float16 bfloat16; T(2, 4), I(2)
multi_margin_loss_backward .grad_input; float16 bfloat16; T(), T(2, 4), I(2), 1, 1.0
multilabel_margin_loss_forward .output; float16 bfloat16; T(2, 4), I(2, 4), 1
multilabel_margin_loss_backward .grad_input; float16 bfloat16; T(), T(2, 4), I(2, 4), 1, T(2, 4)
abs .out _; bool; T(4)
acos .out _ acosh .out _ asin .out _ asinh .out _ atan .out _ atanh .out _ cos .out _ cosh .out _; complex32; T(4)
exp .out _ log .out _ rsqrt .out _ sigmoid .out _ sin .out _ sinh .out _ sqrt .out _ tan .out _ tanh .out _; complex32; T(4)
angle .out; float16 bfloat16 complex32; T(4)
igamma .out _ igammac .out _; float16 bfloat16; T(4), T(4)
div.Tensor .out _.Tensor logaddexp .out pow.Tensor_Tensor .Tensor_Tensor_out; complex32; T(4), T(4)
div.Tensor_mode .out_mode _.Tensor_mode; complex32; T(4), T(4), rounding_mode=None
lerp.Scalar .Scalar_out _.Scalar; complex32; T(4), T(4), 0.5
lerp.Tensor .Tensor_out _.Tensor; complex32; T(4), T(4), T(4)
pow.Scalar .Scalar_out; complex32; 2, T(4)
pow.Tensor_Scalar .Tensor_Scalar_out _.Scalar; complex32; T(4), 3
polygamma .out; float16; 1, T(4)
round; float16; T(4)
round.decimals .decimals_out; float16; T(4), decimals=1
rrelu_with_noise .out _; float16; T(4), T(4)
prod; complex32; T(4)
prod.dim_int .int_out; complex32; T(4), 0
sum.dim_IntList .IntList_out; complex32; T(4), [0]
nansum .out; complex32 complex64 complex128; T(4), [0]
trace; bool complex32; T(4, 4)
_fft_c2c; complex32; T(4), [0], 0, True
_fft_c2r; complex32; T(3), [0], 0, 4
_fft_r2c; float16; T(4), [0], 0, True
fft_fft fft_ifft fft_rfft fft_ihfft; float16 bfloat16 complex32; T(4)
fft_hfft fft_irfft; float16 bfloat16 complex32; T(3)
fft_fft2 fft_fftn fft_ifft2 fft_ifftn fft_rfft2 fft_rfftn fft_ihfft2 fft_ihfftn; float16 bfloat16 complex32; T(4, 4)
fft_hfft2 fft_hfftn fft_irfft2 fft_irfftn; float16 bfloat16 complex32; T(4, 3)
_add_relu.Tensor .out _.Tensor; any; T(4), T(4)
_add_relu.Scalar _.Scalar; any; T(4), 1
_convert_weight_to_int4pack_for_cpu; any; T(16, 32).int(), 2
_weight_int4pack_mm_for_cpu; any; T(4, 32), T(8, 16).byte(), 32, T(1, 8, 2)
_dyn_quant_matmul_4bit; any; T(1, 32), T(8).byte(), 32, 32, 8
_dyn_quant_pack_4bit_weight; any; T(8, 16).byte(), T(8, 1), None, 32, 32, 8
_empty_affine_quantized; any; [4], dtype=torch.float32, device='cuda'
_empty_per_channel_affine_quantized; any; [4], scales=T(4), zero_points=I(4), axis=0, dtype=torch.float32, device='cuda'
_histogramdd_bin_edges _histogramdd_from_bin_cts; any; T(4, 2), [2, 2]
_histogramdd_from_bin_tensors; any; T(4, 2), [T(3), T(3)]
histogram.bin_ct .bin_ct_out; any; T(4)
histogram.bins_tensor .bins_tensor_out; any; T(4), T(4)
_scaled_dot_product_flash_attention_for_cpu; any; T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8)
_scaled_dot_product_flash_attention_for_cpu_backward; any; T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4), 0.0, False
_sparse_mm_reduce_impl; SparseCsr; T(4, 4).to_sparse_csr(), T(4, 4), 'amax'
_sparse_mm_reduce_impl_backward; SparseCsr; T(4, 4).to_sparse_csr(), T(4, 4), T(4, 4), 'amax', I(4, 4), [True, True]
_spdiags; any; T(1, 4), torch.tensor([0], device='cuda'), [4, 4]
narrow_copy.out; any; T(4), 0, 0, 2
to_mkldnn; any; T(4)
quantize_per_tensor.tensors; any; [T(4)], T(1), I(1), torch.quint8
dequantize.tensors; Quantized; [Q(4)]
_nested_sum_backward; NestedTensor; T(2), torch.nested.nested_tensor([T(2), T(3)]), [1]
sum.dim_IntList; NestedTensor; torch.nested.nested_tensor([T(2), T(3)]), [1]
_adaptive_avg_pool3d adaptive_avg_pool3d.out avg_pool3d quantized_max_pool3d; Quantized; Q(1, 1, 4, 4, 4), [2, 2, 2]
avg_pool2d; Quantized; Q(1, 1, 4, 4), [2, 2]
quantized_max_pool1d; Quantized; Q(1, 1, 4), [2]
upsample_nearest2d _upsample_nearest_exact2d; Quantized; Q(1, 1, 4, 4), [8, 8]
upsample_nearest3d _upsample_nearest_exact3d; Quantized; Q(1, 1, 4, 4, 4), [8, 8, 8]
upsample_bilinear2d; Quantized; Q(1, 1, 4, 4), [8, 8], False
grid_sampler_2d; Quantized; Q(1, 1, 4, 4), T(1, 2, 2, 2), 0, 0, False
reflection_pad1d.out; Quantized; Q(1, 4), [1, 1]
reflection_pad2d .out; Quantized; Q(1, 4, 4), [1, 1, 1, 1]
_prelu_kernel; Quantized; Q(1, 4), T(4)
cat .out; Quantized; [Q(4), Q(4)]
channel_shuffle; Quantized; Q(1, 4, 2, 2), 2
clamp; Quantized; Q(4), 0, 1
threshold; Quantized; Q(4), 0, 0
eq.Scalar .Scalar_out ne.Scalar .Scalar_out ge.Scalar .Scalar_out gt.Scalar .Scalar_out le.Scalar .Scalar_out lt.Scalar .Scalar_out; Quantized; Q(4), 1; bool
eq.Tensor .Tensor_out ne.Tensor .Tensor_out ge.Tensor .Tensor_out gt.Tensor .Tensor_out le.Tensor .Tensor_out lt.Tensor .Tensor_out; Quantized; Q(4), Q(4); bool
equal; Quantized; Q(4), Q(4)
gelu_ hardsigmoid .out hardtanh .out _ leaky_relu .out _ sigmoid tanh max .unary_out min .unary_out; Quantized; Q(4)
index.Tensor; Quantized; Q(4), [I(1)]
mean.dim .out std.correction .correction_out; Quantized; Q(4), [0]
quantized_batch_norm; Quantized; Q(1, 2, 4, 4), T(2), T(2), T(2), T(2), 1e-5, 1.0, 0
resize_; Quantized; Q(4), [2]
sort.stable; Quantized; Q(4), stable=True
topk; Quantized; Q(4), 1
_assert_async; asserts; T(1) * 0
_assert_async.msg; asserts; T(1) * 0, 'no'
_embedding_bag _embedding_bag_forward_only; asserts; T(4, 4), X(9), Z(1)
embedding; asserts; T(4, 4), X(9)
embedding_dense_backward; asserts; T(1, 4), X(9), 4, -1, False
binary_cross_entropy .out; asserts; T(1) * 2, T(1)
multi_margin_loss .out; asserts; T(1, 4), X(9)
multinomial .out; asserts; T(4) * -1, 1; int64
nll_loss_forward .output; asserts; T(1, 4), X(9), None, 1, -100
nll_loss2d_forward .output; asserts; T(1, 4, 1, 1), X(9).view(1, 1, 1), None, 1, -100
max_unpool2d .out; asserts; T(1, 1, 1, 1), X(99).view(1, 1, 1, 1), [2, 2]
max_unpool3d .out; asserts; T(1, 1, 1, 1, 1), X(99).view(1, 1, 1, 1, 1), [2, 2, 2], [2, 2, 2], [0, 0, 0]
gather .out index_select .out; asserts; T(4), 0, X(9)
take .out; asserts; T(4), X(9)
bernoulli_.Tensor; asserts; T(4), T(4) * 2
masked_scatter_; asserts; T(4), T(4).bool(), T(1)
put_; asserts; T(4), X(9), T(1)
index.Tensor .Tensor_out; asserts; T(4), [X(9)]
_index_put_impl_; asserts; T(4), [X(9)], T(1)
index_add .out _ index_copy .out _ scatter.src .src_out _.src scatter_add .out _; asserts; T(4), 0, X(9), T(1)
index_fill_.int_Scalar scatter.value .value_out _.value; asserts; T(4), 0, X(9), 1.0
index_fill_.int_Tensor; asserts; T(4), 0, X(9), T()
index_reduce .out _; asserts; T(4), 0, X(9), T(1), 'prod'
scatter_reduce.two .two_out _.two; asserts; T(4), 0, X(9), T(1), 'sum'
scatter.reduce .reduce_out _.reduce; asserts; T(4), 0, X(9), T(1), reduce='add'
scatter.value_reduce .value_reduce_out _.value_reduce; asserts; T(4), 0, X(9), 1.0, reduce='add'
"""  # fmt: skip
_INTS = "uint8 int8 int16 int32 int64"
for _name, _meaning in (
    ("ints", _INTS),
    ("sparse", " ".join("Sparse:" + dtype for dtype in ["bool", *_INTS.split()])),
    ("deep", ", ".join("1" * 25)),
):
    RULES = RULES.replace(f"{{{_name}}}", _meaning)


def rule_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yields operator, dtype or condition, arguments, dtype of `out` of each line of RULES."""
    for line in RULES.splitlines():
        names, whats, arguments, out = (line + "; ").split("; ")[:4]
        base = ""
        for name in names.split():
            if name[0] == "." or name == "_" or name[:2] == "_.":
                name = base + name
            else:
                base = name.partition(".")[0]
            for what in whats.split():
                yield name, what, arguments, out.strip("; ")


_MADE = {
    "T": "torch.ones({}, dtype=torch.{dtype}, device='cuda')",
    "I": "torch.ones({}, dtype=torch.int64, device='cuda')",
    "Z": "torch.zeros({}, dtype=torch.int64, device='cuda')",
    "X": "torch.tensor([{}], device='cuda')",
    "B": "torch.ones({}, dtype=torch.int8, device='cuda')",
    "P": "torch.ones({}, device='cuda').to(torch.float8_e4m3fn)",
    "Q": "torch.quantize_per_tensor(torch.ones({}, device='cuda'), 1.0, 0, torch.quint8)",
}


def rule_call(name: str, what: str, arguments: str, out: str) -> str:
    """Returns the call that a row of the rule book is about."""
    import torch

    dtype = what.rpartition(":")[2]  # "int64", or of a kind of tensors "Sparse:int64"
    dtype = dtype if dtype in DTYPES else "float32"

    def made(found: Any) -> str:
        return _MADE[found[1]].format(found[2] or "()", dtype=dtype)

    packet, _, overload = name.partition(".")
    words = [re.sub(r"\b([TIZXBPQ])\(([\d, ]*)\)", made, arguments)]
    of = getattr(getattr(torch.ops.aten, packet), overload or "default")
    for argument in of._schema.arguments:
        if argument.kwarg_only and argument.alias_info is not None:
            kind = "int64" if argument.name == "indices" else out or dtype
            made_of = f"torch.empty(0, dtype=torch.{kind}, device='cuda')"
            words.append(f"{argument.name}={made_of}")
    return "torch.ops.aten.{}.{}({})".format(packet, overload or "default", ", ".join(words))
