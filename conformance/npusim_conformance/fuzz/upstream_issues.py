# SPDX-License-Identifier: BSD-3-Clause
"""Issues of pytorch/pytorch about overloads that end the process on the CPU, in torch 2.13."""

import fnmatch

# Reads and writes outside of operands, for want of checks of their sizes: one issue for all of
# them, which those about single operators were closed in favour of.
OUT_OF_BOUNDS = 195547

# Glob on the overload -> the issue about this operator; the first that fits.
ISSUES = {
    "_grid_sampler_2d_cpu_fallback*": 98136,
    "_sobol_engine_ff_": 73180,
    "_fft_r2c*": 141449,
    "_fft_c2c*": 141450,
    "_scaled_dot_product_flash_attention_for_cpu*": 141219,
    "_transform_bias_rescale_qkv*": 128690,
    "_weight_norm*": 136709,
    "mkldnn_rnn_layer*": 143485,
    "embedding_dense_backward*": 142837,
    "max_pool3d_with_indices_backward*": 142459,
    "fractional_max_pool3d*": 91633,
    "lu_unpack*": 92776,
    "_batch_norm_with_update*": 194798,
    "_native_batch_norm_legit*": 194798,
    "native_batch_norm": 194798,
    "lstm_cell*": 193823,
    "lstm.data": 173946,
    "as_strided*": 146793,
}


def issue(overload: str, how: str) -> int | None:
    """The number of the issue about a death on the CPU, or None where none is known."""
    for pattern, number in ISSUES.items():
        if fnmatch.fnmatchcase(overload, pattern):
            return number
    return OUT_OF_BOUNDS if "outside of its operands" in how else None
