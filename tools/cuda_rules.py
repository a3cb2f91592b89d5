# SPDX-License-Identifier: BSD-3-Clause
"""Writes torch_npusim/cuda_rules.csv: what CUDA's kernels refuse and have, beside the CPU's.

    python tools/cuda_rules.py > torch_npusim/cuda_rules.csv

The dtypes are those that torch's own table of operators (op_db) declares for CUDA and for the CPU,
for a chip of the alias's capability. op_db says what is tested, per operator; which overload
refuses, in which words, is what the tables here add, each row with its source. Files named *.cu and
*.cpp are files of aten/src/ATen/native/cuda; "libtorch_cuda" is the library of the CUDA wheel of
torch 2.13.0, of which was read which functions call Context::alertNotDeterministic, with what.
tests/rules/test_table.py recomputes the file.
"""

import csv
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("operator", "verdict", "when", "dtypes", "text", "source")
_TESTED = "op_db"


@dataclass(frozen=True)
class Refusal:
    """Overloads that refuse the dtypes that op_db declares for the CPU only."""

    infos: str  # names in op_db
    operators: str  # base names; every overload with a kernel of its own
    text: str  # name of the kernel in the error, or the whole text
    source: str
    when: str = ""


_FLOATING_AND_COMPLEX = "AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2"
REFUSALS = (
    Refusal(
        "mm addmm addmm.decomposed addbmm matmul nn.functional.linear tensordot inner einsum "
        "linalg.multi_dot __rmatmul__ nn.functional.bilinear",
        "mm addmm addmm_ _addmm_activation addbmm addbmm_",
        "addmm_cuda",
        f"Blas.cpp {_FLOATING_AND_COMPLEX}",
    ),
    Refusal(
        "bmm baddbmm", "bmm baddbmm baddbmm_", "baddbmm_cuda", f"Blas.cpp {_FLOATING_AND_COMPLEX}"
    ),
    Refusal("mv addmv", "mv addmv addmv_", "addmv_impl_cuda", f"Blas.cpp {_FLOATING_AND_COMPLEX}"),
    Refusal("dot", "dot", "dot", f"Blas.cpp {_FLOATING_AND_COMPLEX}"),
    Refusal("vdot", "vdot", "dot", "Blas.cpp vdot, which is dot for numbers that are not complex"),
    Refusal(
        "nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d "
        "nn.functional.conv_transpose1d nn.functional.conv_transpose2d "
        "nn.functional.conv_transpose3d",
        "convolution convolution_overrideable",
        "getCudnnDataTypeFromScalarType() not supported for {dtype}",
        "aten/src/ATen/cudnn/Descriptors.cpp; text in libtorch_cuda",
    ),
    Refusal(
        "nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.local_response_norm",
        "avg_pool2d",
        "avg_pool2d_out_cuda_frame",
        "pytorch issue 139115",
    ),
    Refusal("nn.functional.avg_pool3d", "avg_pool3d", "avg_pool3d_out_cuda", "AveragePool3d.cu"),
    Refusal(
        "nn.functional.max_pool2d",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_out_cuda_frame",
        "DilatedMaxPool2d.cu AT_DISPATCH_FLOATING_TYPES_AND2",
    ),
    Refusal(
        "nn.functional.max_pool3d",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_out_frame",
        "DilatedMaxPool3d.cu AT_DISPATCH_FLOATING_TYPES_AND2",
    ),
    Refusal(
        "nn.functional.interpolate.bilinear nn.functional.upsample_bilinear",
        "upsample_bilinear2d",
        "upsample_bilinear2d_out_frame",
        "UpSampleBilinear2d.cu; equal sizes are a copy",
        when="output_size resizes",
    ),
    Refusal(
        "nn.functional.interpolate.bicubic",
        "upsample_bicubic2d",
        "upsample_bicubic2d_out_frame",
        "UpSampleBicubic2d.cu; equal sizes are a copy",
        when="output_size resizes",
    ),
    Refusal(
        "_upsample_bilinear2d_aa",
        "_upsample_bilinear2d_aa",
        "upsample_bilinear2d_out_frame",
        "UpSampleBilinear2d.cu; text in libtorch_cuda",
        when="output_size resizes",
    ),
    Refusal(
        "igamma", "igamma igamma_", "igamma_cuda", "IGammaKernel.cu AT_DISPATCH_FLOATING_TYPES"
    ),
    Refusal(
        "igammac", "igammac igammac_", "igammac_cuda", "IGammaKernel.cu AT_DISPATCH_FLOATING_TYPES"
    ),
    Refusal("angle", "angle", "angle_cuda", "UnaryComplexKernels.cu AT_DISPATCH_FLOATING_TYPES"),
    Refusal("histc", "histc", "histc", "SummaryOps.cu AT_DISPATCH_ALL_TYPES"),
    Refusal(
        "native_dropout_backward",
        "native_dropout_backward",
        "masked_scale",
        "Dropout.cu dropout_backward_cuda",
    ),
    Refusal(
        "scatter_reduce.prod scatter_reduce.amin scatter_reduce.amax",
        "scatter_reduce scatter_reduce_",
        "cuda_scatter_gather_base_kernel_func",
        "ScatterGatherKernel.cu",
        when="reduce=prod|amin|amax",
    ),
)

#: Dtypes that the kernel of an operator refuses in other words.
OTHER_WORDS = {
    ("histc", "float16"): "HalfTensor is not supported",
    ("convolution", "int8 int32 uint8"): "GET was unable to find an engine to execute this "
    "computation",
}

#: Refusals that op_db does not declare: base names, "=" before full ones; condition, dtypes, text.
_HEARD = "an H100 with torch 2.11, docs/reference/truth.md"
_NO_FLOATS = "bool complex128 complex32 complex64 float8_e4m3fn int16 int32 int64 int8 uint16 uint8"
_COMPLEX = "complex128 complex32 complex64"
_CUDNN = "getCudnnDataTypeFromScalarType() not supported for {dtype}"
HEARD = (
    ("abs abs_", "", "float8_e4m3fn", "abs_cuda"),
    ("mm addmm addmm_ addbmm addbmm_", "", "float8_e4m3fn", "addmm_cuda"),
    ("addcmul addcmul_", "", "complex32", "addcmul_cuda"),
    ("bitwise_and bitwise_and_", "", "uint16", "bitwise_and_cuda"),
    ("bitwise_or bitwise_or_", "", "uint16", "bitwise_or_cuda"),
    ("bitwise_xor bitwise_xor_", "", "uint16", "bitwise_xor_cuda"),
    ("mul mul_", "", "float8_e4m3fn uint16", "mul_cuda"),
    ("roll", "", "float8_e4m3fn uint16", "roll_cuda"),
    ("signbit", "", "uint16", "signbit_cuda"),
    ("index.Tensor", "", "uint16", "index_cuda"),
    ("histc", "", "uint16", "histc"),
    ("vdot", "", "bool float8_e4m3fn uint16", "dot"),
    ("convolution convolution_backward", "", "bool complex32 float8_e4m3fn int16 uint16", _CUDNN),
    ("convolution", "", "int8 int32 uint8", OTHER_WORDS["convolution", "int8 int32 uint8"]),
    ("native_dropout_backward", "", f"{_COMPLEX} float8_e4m3fn uint16", "masked_scale"),
    (
        "scatter_reduce scatter_reduce_", "reduce=prod|mean", "complex128 complex64",
        "cuda_scatter_gather_base_kernel_func",
    ),
    ("=median =nanmedian", "", _COMPLEX, "Sort does not support complex dtypes on CPU"),
    ("=sort.stable", "self.size(0)<=4096", "float8_e4m3fn uint16", "sortKeyValueInplace"),
    ("=sort.stable", "", "float8_e4m3fn uint16", "sort"),
    ("where.self", "", "uint16", "where_cuda"),
    ("minimum fmin", "", "uint16", "minimum_cuda"),
    ("=div.Tensor_mode", "rounding_mode=floor", "complex32", "div_floor_cuda"),
    ("=div.Tensor_mode", "rounding_mode=trunc", "complex32", "div_trunc_cuda"),
    ("=std.correction =var.correction", "", "float8_e4m3fn", "std_cuda"),
    ("_embedding_bag _embedding_bag_forward_only", "", _NO_FLOATS, "embedding_bag_cuda"),
    ("=fft_rfft", "", "complex32", "rfft expects a real input tensor, but got {dtype}"),
    (
        "=fft_ihfft2 =fft_ihfftn",
        "",
        "complex32",
        "Only supports floating-point dtypes, but found: {dtype}",
    ),
    ("=fft_ihfft", "", "complex32", "ihfft expects a real input tensor, but got {dtype}"),
    (
        "=fft_rfft2 =fft_rfftn",
        "",
        "complex32",
        "rfftn expects a real-valued input tensor, but got {dtype}",
    ),
    (
        "=_flash_attention_forward",
        "",
        f"{_NO_FLOATS} float32 float64",
        "FlashAttention only support fp16 and bf16 data type",
    ),
    (
        "=_efficient_attention_forward",
        "",
        f"{_NO_FLOATS} float64",
        "Only fp32, half & bf16 supported at the moment",
    ),
    ("aminmax", "dim", f"{_COMPLEX} float8_e4m3fn uint16", "aminmax_cuda"),
    ("aminmax", "", f"{_COMPLEX} float8_e4m3fn uint16", "aminmax_all_cuda"),
    ("_adaptive_avg_pool3d", "", _NO_FLOATS, "adaptive_avg_pool3d_cuda"),
    ("rrelu_with_noise rrelu_with_noise_", "", _NO_FLOATS, "rrelu_with_noise_out_cuda"),
)  # fmt: skip

_NO_PRODUCT = "bool complex128 complex32 complex64"
# Refusals of arguments: base names, condition, dtypes, the whole text or the kernel's name, and the
# source of torch 2.13.
ARGUMENTS = (
    (
        "linalg_lstsq", "driver!=gels|None", "",
        "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA",
        "BatchLinearAlgebra.cpp get_default_lstsq_driver",
    ),
    (
        "scatter.reduce scatter_.reduce", "reduce=multiply", _NO_PRODUCT,
        "cuda_scatter_gather_base_kernel_func",
        "ScatterGatherKernel.cu AT_DISPATCH_ALL_TYPES_AND2",
    ),
    (
        "scatter.value_reduce scatter_.value_reduce", "reduce=multiply", _NO_PRODUCT,
        "cuda_scatter_fill_base_kernel_reduce_multiply",
        "ScatterGatherKernel.cu AT_DISPATCH_ALL_TYPES_AND2",
    ),
    (
        "median.dim nanmedian.dim kthvalue topk", "self.dim()>24", "",
        "CUDA Tensors cannot have more than 25 dimensions", "TensorInfo.cuh",
    ),
    (
        "_int_mm", "self.size(0)<=16", "",
        "self.size(0) needs to be greater than 16, but got {size}", "Blas.cpp _int_mm_out_cuda",
    ),
    (
        "_int_mm", "self.size(1)%8", "",
        "self.size(1) needs to be greater than 0 and a multiple of 8, but got {size}",
        "Blas.cpp _int_mm_out_cuda",
    ),
    (
        "_int_mm", "mat2.size(1)%8", "",
        "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got {size}",
        "Blas.cpp _int_mm_out_cuda",
    ),
    (
        "_scaled_mm", "capability<8.9", "",
        "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or "
        "8.9, or ROCm MI300+", "ScaledBlas.cpp _scaled_mm_out_cuda",
    ),
)  # fmt: skip

_INTEGERS = "bool int16 int32 int64 int8 uint8"
#: The same of sparse tensors: full names, kind, dtypes, text, source below sparse/cuda.
SPARSE = (
    (
        "addmm addmm.out addmm_ mm mm.out _sparse_addmm hspmm", "Sparse", _INTEGERS,
        "addmm_sparse_cuda", "SparseCUDABlas.cpp AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES",
    ),
    (
        "bmm bmm.out", "Sparse", _INTEGERS,
        "bmm_sparse_cuda", "SparseCUDATensorMath.cu AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES",
    ),
    (
        "sspaddmm.out", "Sparse", "",
        "NYI: CUDA sspaddmm is not implemented", "native/cuda, _sspaddmm_out_cuda",
    ),
)  # fmt: skip

#: Arguments that CUDA assumes where none is given: base name, argument, value, source.
ASSUMED = (("linalg_lstsq", "driver", "gels", "BatchLinearAlgebra.cpp get_default_lstsq_driver"),)

#: What op_db declares for the CPU only and is no refusal all the same, and why.
NO_REFUSAL = {
    "norm": "linalg.vector_norm, which it calls, declares complex32 for CUDA",
    "norm.inf": "linalg.vector_norm, which it calls, declares complex32 for CUDA",
    "torch._scaled_mm": "a private operator; the dtypes are other vendors' formats of 8 bits",
    "torch._scaled_mm_v2": "a private operator; the dtypes are other vendors' formats of 8 bits",
}

#: Operators whose quotient by zero is an error on the CPU, and undefined on CUDA.
BY_ZERO = """=div.Tensor_mode =div.out_mode =div_.Tensor_mode floor_divide =floor_divide_.Tensor
    remainder.Tensor =remainder_.Tensor =remainder.Scalar_Tensor fmod.Tensor =fmod_.Tensor"""

# An alert: base names, condition, dtypes, what it calls itself.
_ALERT = "libtorch_cuda alertNotDeterministic"
ALERTS = (
    ("_adaptive_avg_pool2d_backward", "", "", "adaptive_avg_pool2d_backward_cuda"),
    ("_adaptive_avg_pool3d_backward", "", "", "adaptive_avg_pool3d_backward_cuda"),
    ("adaptive_max_pool2d_backward", "", "", "adaptive_max_pool2d_backward_cuda"),
    ("avg_pool3d_backward", "", "", "avg_pool3d_backward_cuda"),
    ("fractional_max_pool2d_backward", "", "", "fractional_max_pool2d_backward_cuda"),
    ("fractional_max_pool3d_backward", "", "", "fractional_max_pool3d_backward_cuda"),
    ("max_pool3d_with_indices_backward", "", "", "max_pool3d_with_indices_backward_cuda"),
    ("upsample_linear1d_backward", "", "", "upsample_linear1d_backward_out_cuda"),
    ("upsample_bilinear2d_backward", "", "", "upsample_bilinear2d_backward_out_cuda"),
    ("_upsample_bilinear2d_aa_backward", "", "", "upsample_bilinear2d_aa_backward_out_cuda"),
    ("upsample_bicubic2d_backward", "", "", "upsample_bicubic2d_backward_out_cuda"),
    ("_upsample_bicubic2d_aa_backward", "", "", "upsample_bicubic2d_aa_backward_out_cuda"),
    ("upsample_trilinear3d_backward", "", "", "upsample_trilinear3d_backward_out_cuda"),
    ("reflection_pad1d_backward", "", "", "reflection_pad1d_backward_out_cuda"),
    ("reflection_pad3d_backward", "", "", "reflection_pad3d_backward_out_cuda"),
    ("replication_pad1d_backward", "", "", "replication_pad1d_backward_cuda"),
    ("replication_pad2d_backward", "", "", "replication_pad2d_backward_cuda"),
    ("replication_pad3d_backward", "", "", "replication_pad3d_backward_cuda"),
    ("nll_loss2d_forward", "reduction!=0", "", "nll_loss2d_forward_out_cuda_template"),
    ("_ctc_loss_backward", "", "", "ctc_loss_backward_gpu"),
    ("_embedding_bag_backward", "mode=2", "", "embedding_bag_backward_cuda_max"),
    ("_embedding_bag_dense_backward", "mode=2", "", "embedding_bag_backward_cuda_max"),
    ("histc", "", "float", "_histc_cuda with floating point input"),
    ("bincount", "weights", "", "_bincount_cuda"),
    ("median.dim", "", "", "median CUDA with indices output"),
    ("nanmedian.dim", "", "", "median CUDA with indices output"),
    ("grid_sampler_2d_backward", "", "", "grid_sampler_2d_backward_cuda"),
    ("grid_sampler_3d_backward", "", "", "grid_sampler_3d_backward_cuda"),
    ("index_reduce index_reduce_", "", "", "index_reduce_cuda"),
    ("put_", "accumulate=1", "", "put_"),
    ("scatter_reduce scatter_reduce_", "reduce=prod", "", "scatter_reduce_cuda_prod_"),
    ("scatter.reduce scatter_.reduce", "reduce!=add", "", "scatter_reduce_cuda_kernel"),
)
#: Forms that call themselves otherwise in an alert.
OUT_ALERTS = {
    f"aten::{base}_backward.grad_input": f"{base}_backward_out_cuda"
    for base in (
        "replication_pad2d",
        "replication_pad3d",
        "fractional_max_pool3d",
        "max_pool3d_with_indices",
    )
}
_FLOATS = ("float16", "float32", "float64", "bfloat16")

#: Operators that check indices in a kernel of CUDA, with CUDA_KERNEL_ASSERT.
ASSERTS = (
    "index _index_put_impl_ index_select index_add index_add_ index_copy index_copy_ take gather "
    "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_fill_ "
    "index_reduce index_reduce_ put_ embedding embedding_dense_backward "
    "_embedding_bag _embedding_bag_forward_only nll_loss_forward nll_loss2d_forward "
    "multi_margin_loss max_unpool2d max_unpool3d"
)
#: Operators that check values there, with the words of the CPU's kernel.
VALUE_ASSERTS = (
    ("binary_cross_entropy", "all elements of input should be between 0 and 1", "Loss.cu"),
    ("multinomial", "probabilit", "MultinomialKernel.cu"),
    ("bernoulli_.Tensor", "expects all elements of p", "DistributionBernoulli.cu"),
    ("masked_scatter_", "Number of elements of source", "IndexKernel.cu masked_scatter_size_check"),
    ("_assert_async", "Expected Tensor with single", "TensorCompare.cu _assert_async_cuda_kernel"),
)

# What CUDA has and the CPU lacks: base names, dtype, wider dtype, verdict.
_FFTS = (
    "fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_rfft fft_rfft2 fft_rfftn fft_ifft "
    "fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn"
)
_POINTWISE = (
    "acos acosh asin asinh atan atanh cos cosh exp log sin sinh tan tanh rsqrt sqrt sigmoid div "
    "pow lerp angle logaddexp prod sum trace"
)
_CONVOLUTIONS = "convolution convolution_overrideable convolution_backward"
_POOLS = (
    "avg_pool3d avg_pool3d_backward multi_margin_loss multi_margin_loss_backward "
    "multilabel_margin_loss_forward multilabel_margin_loss_backward _upsample_bilinear2d_aa "
    "_upsample_bilinear2d_aa_backward"
)
_MOVES = (
    "gather flip index_select channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle "
    "=scatter.src =scatter.src_out =scatter_.src =eye.out =eye.m_out"
)
WIDENED = (
    (_FFTS, "float16", "float32", "fft"),
    (_FFTS, "complex32", "complex64", "fft"),
    (_FFTS, "bfloat16", "float32", "keep"),  # no complex dtype has its parts
    ("_fft_r2c", "float16", "float32", "fft"),
    ("_fft_c2r _fft_c2c", "complex32", "complex64", "fft"),
    (_POINTWISE, "complex32", "complex64", "widen"),
    (_CONVOLUTIONS, "complex32", "complex64", "widen"),
    (_POOLS, "float16", "float32", "widen"),
    (_POOLS, "bfloat16", "float32", "widen"),
    ("rrelu_with_noise rrelu_with_noise_ round.decimals polygamma", "float16", "float32", "widen"),
    ("abs abs_", "bool", "uint8", "widen"),
    ("trace", "bool", "int64", "keep"),
    ("nansum", "complex32 complex64 complex128", "", "sum_of_numbers"),
)
_EMPTY = "_adaptive_avg_pool3d rrelu_with_noise rrelu_with_noise_"
_NO_INDICES = (
    "bfloat16 bool complex128 complex32 complex64 float16 float32 float64 float8_e4m3fn int16 int8 "
    "uint16 uint8"
)
#: The same, of which op_db knows nothing.
HEARD_WIDENED = (
    # What CUDA moves whatever it is, and the CPU's kernels only know by dtype.
    (_MOVES, "uint16", "int64", "widen"),
    (_MOVES, "float8_e4m3fn", "float32", "widen"),
    (f"{_MOVES} =equal logsumexp", "complex32", "complex64", "widen"),
    ("=count_nonzero", "float8_e4m3fn uint16", "float32", "widen"),
    ("max_unpool2d max_unpool3d", "int8 int16 int32 uint8", "float64", "widen"),
    ("=median =nanmedian", "bool", "uint8", "widen"),
    ("=median =nanmedian", "float8_e4m3fn", "float32", "widen"),
    # Refused above; nothing is launched for an operand without elements.
    (_EMPTY, _NO_FLOATS, "float32", "widen"),
    # Factories.
    ("tril_indices triu_indices", _NO_INDICES, "int64", "widen"),
)


# Kinds of tensors with kernels of their own, as native_functions.yaml calls them.
_KINDS = ("", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
#: Operators that are torch's own tests, or that make something of no device.
#: mkldnn_rnn_layer is what nn.LSTM runs here, in the place of cuDNN's.
_NO_OPERATORS = (
    "mkldnn_rnn_layer",
    "_test_",
    "_foobar",
    "_make_dep_token",
    "_functional_assert_async",
    "from_file",
)


def cpu_only() -> list[tuple[str, str]]:
    """Returns the operators with a kernel for a kind of tensors on the CPU and none on CUDA."""
    import torchgen
    import yaml

    functions = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    found = []
    for function in yaml.safe_load(functions.read_text()):
        listed = function.get("dispatch", {})
        keys = {key.strip() for keys in listed for key in keys.split(",")}
        name = function["func"].partition("(")[0]
        delegates = any(key.startswith("Composite") for key in keys)
        if delegates or name.startswith(_NO_OPERATORS):
            continue
        found += [
            (f"aten::{name}", kind)
            for kind in _KINDS
            if f"{kind}CPU" in keys and f"{kind}CUDA" not in keys
        ]
    return found


def declared() -> dict[str, tuple[set[str], set[str]]]:
    """Returns op_db's dtypes for the CPU and for CUDA by full name.

    Wants a process of its own, in which nobody has imported op_db.

    op_db asks what the CUDA device can do when it is imported, so it is told.
    """
    import torch
    import torch.utils._triton as triton

    from torch_npusim.sim.specs import DEFAULT_CAPABILITY

    triton.has_triton = lambda: False  # asks the driver, where triton is installed
    before = torch.cuda.is_available, torch.cuda.get_device_capability, torch.version.cuda
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: DEFAULT_CAPABILITY
    torch.version.cuda = "13.0"
    from torch.testing._internal.common_methods_invocations import op_db

    torch.cuda.is_available, torch.cuda.get_device_capability, torch.version.cuda = before
    found: dict[str, tuple[set[str], set[str]]] = {}
    for info in op_db:
        cpu, cuda = ({str(d)[6:] for d in of} for of in (info.dtypes, info.dtypesIfCUDA))
        before = found.get(info.full_name, (set(), set()))
        found[info.full_name] = (before[0] | cpu, before[1] | cuda)
    return found


# out= forms that are not named after their overload.
_OUT = {"median.dim": "dim_values", "nanmedian.dim": "dim_values"}


def overloads(base: str, composite: bool = False) -> list[str]:
    """Returns the overloads of an operator that have a kernel of a device, or of all of them."""
    import torch

    if base.startswith("="):
        return [f"aten::{base[1:]}"]
    name, _, overload = base.partition(".")
    keys = ["CPU", "PrivateUse1", *(["CompositeImplicitAutograd"] if composite else [])]
    forms = {overload, f"{overload}_out", _OUT.get(base, "")}
    kept = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        if "dtype" in schema.overload_name or (overload and schema.overload_name not in forms):
            continue
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        try:
            kernels = [torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys]
        except RuntimeError:  # TorchScript's own, which the dispatcher does not know
            continue
        if any(kernels):
            kept.append(full)
    if not kept:
        raise LookupError(f"no overload of aten::{base} has a kernel")
    return kept


def _row(operator: str, verdict: str, when: str, dtypes: Iterable[str], text: str, source: str):
    return operator, verdict, when, " ".join(dtypes), text, source


def by_words(base: str, dtypes: set[str], text: str) -> list[tuple[str, list[str]]]:
    """Returns the texts of a refusal, each with its dtypes."""
    others = {
        words: dtypes & set(its.split()) for (of, its), words in OTHER_WORDS.items() if of == base
    }
    plain = dtypes.difference(*others.values())
    return [(words, sorted(its)) for words, its in [(text, plain), *others.items()] if its]


def rows() -> list[Sequence[str]]:
    """Returns the table."""
    dtypes = declared()
    table = []
    for refusal in REFUSALS:
        only_cpu = set().union(
            *(dtypes[name][0] - dtypes[name][1] for name in refusal.infos.split())
        )
        if not only_cpu:  # of another version of torch: sim/rules.py VERSIONS
            continue
        for base in refusal.operators.split():
            for it in overloads(base):
                source = f"{_TESTED} {refusal.infos.split()[0]}; {refusal.source}"
                for text, its in by_words(base, only_cpu, refusal.text):
                    table.append(_row(it, "refuse", refusal.when, its, text, source))
    for bases, when, narrow, text in HEARD:
        for base in bases.split():
            for it in overloads(base):
                table.append(_row(it, "refuse", when, narrow.split(), text, _HEARD))
    for bases, when, narrow, text, source in ARGUMENTS:
        for base in bases.split():
            for it in overloads(base):
                table.append(_row(it, "refuse", when, narrow.split(), text, source))
    for names, kind, narrow, text, source in SPARSE:
        for name in names.split():
            table.append(_row(f"aten::{name}", "refuse", kind, narrow.split(), text, source))
    for base, argument, value, source in ASSUMED:
        for it in overloads(base):
            table.append(_row(it, "assume", f"{argument}=None", (), value, source))
    for base in BY_ZERO.split():
        for it in overloads(base):
            source = "BinaryDiv*Kernel.cu, BinaryRemainderKernel.cu: no check"
            dtypes = _INTEGERS.split()  # a bool keeps no quotient in place
            table.append(_row(it, "by zero", "", dtypes["_." in it :], "", source))
    for bases, when, kind, text in ALERTS:
        for base in bases.split():
            for it in overloads(base):
                said = OUT_ALERTS.get(it, text)
                table.append(
                    _row(it, "nondeterministic", when, _FLOATS if kind else (), said, _ALERT)
                )
    both = [(_TESTED, row) for row in WIDENED] + [(_HEARD, row) for row in HEARD_WIDENED]
    for source, (bases, narrow, wide, verdict) in both:
        for base in bases.split():
            for it in overloads(base, composite="fft_" in bases):
                if "fft_" not in bases or not it.endswith("out"):
                    table.append(_row(it, verdict, "", narrow.split(), wide, source))
    for base in ASSERTS.split():
        for it in overloads(base):
            table.append(_row(it, "asserts", "", (), "", "CUDA_KERNEL_ASSERT in its kernel"))
    for base, phrase, source in VALUE_ASSERTS:
        for it in overloads(base):
            words = "{assert_msg}" if it.endswith(".msg") else phrase
            table.append(_row(it, "asserts", "", (), words, f"CUDA_KERNEL_ASSERT in {source}"))
    for operator, kind in cpu_only():
        table.append(_row(operator, "cpu only", kind, (), "", "native_functions.yaml: dispatch"))
    order = (
        "refuse",
        "assume",
        "nondeterministic",
        "fft",
        "widen",
        "keep",
        "sum_of_numbers",
        "by zero",
        "asserts",
    )
    places = (*order, "cpu only")  # rows with a condition come first: the first one that holds acts
    return sorted(table, key=lambda row: (row[0], places.index(row[1]), not row[2], row))


def main() -> None:
    """Writes the table to the standard output."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows())


if __name__ == "__main__":
    # The other device's names must not be there: overloads() looks at core's kernels and ours.
    os.environ["NPUSIM_RULES"] = "off"
    main()
