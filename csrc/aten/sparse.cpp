// SPDX-License-Identifier: BSD-3-Clause
// Sparse COO and compressed tensors: constructors, accessors, resizing and copies are torch's own
// device-independent functions; they only handle the dense member tensors, which are device
// tensors. Arithmetic is the fallback over host views made of views of the members; the lists name
// the operators whose composites would otherwise be taken before the fallback.
// Invariant: an accessor returns the member itself, never a copy.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "csrc/routes/fallback.h"
#include "csrc/routes/on_host_views.h"
#include "csrc/routes/on_operand_device.h"

// Core's check of a coalesced tensor's indices ends in this stub, whose header is not installed.
namespace at::native {
DECLARE_DISPATCH(Tensor (*)(const Tensor&, IntArrayRef), flatten_indices_stub)
}

namespace torch_npusim {

namespace {

at::Tensor flatten_indices(const at::Tensor& indices, at::IntArrayRef size) {
  return on_host_views("npusim::flatten_indices", {&indices}, elementwise_cost({&indices}),
                       [&](CpuCall& call) {
                         const at::Tensor view = call.view(indices, /*written=*/false);
                         at::Tensor flat = at::sparse::flatten_indices(view, size);
                         call.finish();
                         return call.result(std::move(flat));
                       });
}

// Operators with a composite beside the CPU's sparse kernel, for both kinds of layout.
// tests/ops/test_sparse.py recomputes the lists from the dispatcher.
constexpr std::array kShadowed = {"abs",
                                  "abs_",
                                  "addmm",
                                  "asin",
                                  "asin_",
                                  "asinh",
                                  "asinh_",
                                  "atan",
                                  "atan_",
                                  "atanh",
                                  "atanh_",
                                  "ceil",
                                  "ceil_",
                                  "deg2rad",
                                  "deg2rad.out",
                                  "deg2rad_",
                                  "erf",
                                  "erf_",
                                  "erfinv",
                                  "erfinv_",
                                  "expm1",
                                  "expm1_",
                                  "floor",
                                  "floor_",
                                  "frac",
                                  "frac_",
                                  "isinf",
                                  "isneginf",
                                  "isposinf",
                                  "log1p",
                                  "log1p_",
                                  "mm",
                                  "mul.Tensor",
                                  "mul_.Tensor",
                                  "neg",
                                  "neg_",
                                  "rad2deg",
                                  "rad2deg.out",
                                  "rad2deg_",
                                  "round",
                                  "round_",
                                  "sgn",
                                  "sgn_",
                                  "sign",
                                  "sign_",
                                  "signbit",
                                  "sin",
                                  "sin_",
                                  "sinh",
                                  "sinh_",
                                  "sqrt",
                                  "sqrt_",
                                  "sum",
                                  "sum.dim_IntList",
                                  "tan",
                                  "tan_",
                                  "tanh",
                                  "tanh_",
                                  "threshold_backward",
                                  "trunc",
                                  "trunc_"};
constexpr std::array kShadowedCoo = {"addmm_",
                                     "any",
                                     "bmm",
                                     "cat",
                                     "div.Tensor",
                                     "div.Tensor_mode",
                                     "div_.Tensor",
                                     "div_.Tensor_mode",
                                     "mv",
                                     "nan_to_num",
                                     "nan_to_num_",
                                     "narrow_copy",
                                     "norm.ScalarOpt_dim",
                                     "norm.ScalarOpt_dim_dtype",
                                     "permute",
                                     "pow.Tensor_Scalar",
                                     "unsqueeze",
                                     "zeros.out"};
constexpr std::array kShadowedCompressed = {"add.Tensor",     "add_.Tensor", "_conj_physical",
                                            "conj_physical_", "mul.Scalar",  "mul_.Scalar",
                                            "select_copy.int"};

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims", on_operand_device<at::native::new_with_dims_sparse>());
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         on_operand_device<at::native::new_with_dims_and_tensor_sparse_symint>());
  m.impl("empty.memory_format", on_operand_device<at::native::empty_sparse_symint>());
  m.impl("empty_like", on_operand_device<at::native::empty_like_sparse_coo>());
  m.impl("clone", on_operand_device<at::native::clone_sparse>());
  m.impl("copy_", on_operand_device<at::native::copy_sparse_wrapper_>());
  m.impl("copy_sparse_to_sparse_", on_operand_device<at::native::copy_sparse_>());
  m.impl("sparse_resize_", on_operand_device<at::native::sparse_resize_>());
  m.impl("sparse_resize_and_clear_", on_operand_device<at::native::sparse_resize_and_clear_>());
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_dimI", &at::native::sparse_dim_sparse);
  m.impl("_dimV", &at::native::dense_dim_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("indices", &at::native::indices_sparse);
  m.impl("values", &at::native::values_sparse);
  serve_by_fallback(m, kShadowed);
  serve_by_fallback(m, kShadowedCoo);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", on_operand_device<at::native::empty_sparse_compressed>());
  m.impl("empty_like", on_operand_device<at::native::empty_like_sparse_csr>());
  m.impl("clone", on_operand_device<at::native::clone_sparse_compressed>());
  m.impl("copy_", on_operand_device<at::native::copy_sparse_compressed_>());
  m.impl("sparse_dim", &at::native::sparse_dim_sparse_csr);
  m.impl("dense_dim", &at::native::dense_dim_sparse_csr);
  m.impl("_nnz", &at::native::_nnz_sparse_csr);
  m.impl("crow_indices", &at::native::crow_indices_sparse_csr);
  m.impl("col_indices", &at::native::col_indices_sparse_csr);
  m.impl("ccol_indices", &at::native::ccol_indices_sparse_csr);
  m.impl("row_indices", &at::native::row_indices_sparse_csr);
  m.impl("values", &at::native::values_sparse_csr);
  m.impl("select.int", &at::native::select_sparse_csr);
  serve_by_fallback(m, kShadowed);
  serve_by_fallback(m, kShadowedCompressed);
}

}  // namespace torch_npusim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &torch_npusim::flatten_indices)
}
