// SPDX-License-Identifier: BSD-3-Clause
// The table of CUDA's kernels per operator. Functions named in `source` are where they are launched;
// files are those of aten/src/ATen/native and its folder cuda.
#include "csrc/routes/cuda_kernels.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/runtime/profiler.h"

namespace torch_npusim {

namespace kernel_counts {

namespace {

struct Call {
  TensorPointers operands;
  const CallArguments& arguments;
  const at::TensorBase& operand(std::size_t i) const { return *operands[i]; }
  // The first number, or the first of the first list.
  int64_t number() const { return arguments.dims.empty() ? 0 : arguments.dims[0]; }
};

int one_more(const Call&) { return 2; }

// --- products

// A vector is the bias of cublasLt's own epilogue; anything else is copied to the result first.
int with_addend(const Call& call) { return call.operand(0).dim() == 1 ? 1 : 2; }
int by_batch(const Call& call) { return 1 + static_cast<int>(call.operand(1).size(0)); }

// --- reductions

bool is_integral(const at::TensorBase& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

// Sums of integers are sums of int64.
int of_integers(const Call& call) {
  return is_integral(call.operand(0)) && call.operand(0).scalar_type() != at::kLong ? 2 : 1;
}
int of_bools(const Call& call) {
  const at::ScalarType dtype = call.operand(0).scalar_type();
  return dtype == at::kBool || dtype == at::kByte ? 1 : 2;
}

// A dimension that is the whole tensor is CUB's scan, which begins with a kernel of its own.
int scan(const Call& call) {
  const at::TensorBase& self = call.operand(0);
  return self.dim() == 0 || self.numel() == self.size(call.number()) ? 2 : 1;
}

// --- losses

constexpr int64_t kNone = 0, kMean = 1;  // at::Reduction

// Of rows, and not reduced: zeros for the sum of weights come first.
int per_class(const Call& call) {
  return call.operand(0).dim() == 2 && call.number() == kNone ? 2 : 1;
}
int reduced(const Call& call) { return call.number() == kNone ? 1 : 2; }
int reduced_and_copied(const Call& call) { return call.number() == kNone ? 1 : 3; }
int divided(const Call& call) { return call.number() == kMean ? 2 : 1; }

// --- norms

// Four elements are loaded at once where a row is a multiple of four.
int layer_norm(const Call& call) {
  int64_t width = 1;
  for (const int64_t size : call.arguments.dims) width *= size;
  return width % 4 == 0 ? 1 : 2;
}

int group_norm(const Call&) { return 3; }
int group_norm_backward(const Call&) { return 5; }

// --- Fourier transforms

// cuFFT takes one distance between transforms: other dimensions must merge into one, in the order of
// their strides.
bool must_copy(const at::TensorBase& self, c10::ArrayRef<int64_t> dims) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> batch;  // stride, size
  for (const auto d : c10::irange(self.dim())) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end() || self.size(d) == 1) continue;
    batch.emplace_back(self.stride(d), self.size(d));
  }
  std::sort(batch.begin(), batch.end());
  for (std::size_t i = 1; i < batch.size(); ++i) {
    if (batch[i].first != batch[i - 1].first * batch[i - 1].second) return true;
  }
  return false;
}

// The copies, one kernel per dimension, and the scale unless there is none.
int transform(const Call& call, int copies) {
  auto dims = call.arguments.dims;
  for (int64_t& dim : dims) dim += dim < 0 ? call.operand(0).dim() : 0;
  const bool scaled = call.arguments.second.value_or(0) != 0;
  return copies + static_cast<int>(dims.size()) + (must_copy(call.operand(0), dims) ? 1 : 0) +
         (scaled ? 1 : 0);
}
int complex_transform(const Call& call) { return transform(call, 0); }
// The other half of a whole spectrum is filled in.
int of_real(const Call& call) { return transform(call, call.arguments.flag.value_or(true) ? 0 : 1); }
// cuFFT destroys its input, so that is copied.
int to_real(const Call& call) { return transform(call, 1); }

// --- indices

// Axes are rolled one after the other.
int per_axis(const Call& call) { return std::max<int>(1, static_cast<int>(call.arguments.dims.size())); }
// Not counting what was there: places are reset first.
int scatter_reduce(const Call& call) { return call.arguments.flag.value_or(true) ? 2 : 4; }

struct Row {
  const char* operators;
  int (*count)(const Call& call);
  const char* kernels;
  const char* source;
};

constexpr Row kRows[] = {
    {"masked_fill.Scalar masked_fill.Tensor index_add index_copy index_reduce scatter.src "
     "scatter.value scatter_add index_fill.int_Scalar",
     &one_more, "a copy of self, and the kernel that changes it",
     "TensorAdvancedIndexing.cpp: scatter_impl, masked_fill; Indexing.cu: index_add_cuda_out"},
    {"scatter_reduce.two", &scatter_reduce, "the same; without self four, in an H100's list",
     "TensorAdvancedIndexing.cpp: scatter_impl, scatter_reduce_exclude_self_helper"},
    {"max_unpool2d max_unpool3d", &one_more, "zeros, and the kernel that fills in values",
     "MaxUnpooling.cu: max_unpooling2d_forward_out_cuda"},
    {"upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
     "upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward "
     "_upsample_bicubic2d_aa_backward",
     &one_more, "zeros, and the kernel that adds to them",
     "UpSampleBilinear2d.cu: upsample_bilinear2d_backward_out_cuda_template, and its like"},
    {"max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
     "adaptive_max_pool2d_backward adaptive_max_pool3d_backward _adaptive_avg_pool2d_backward "
     "_adaptive_avg_pool3d_backward avg_pool3d_backward fractional_max_pool2d_backward "
     "fractional_max_pool3d_backward",
     &one_more, "zeros, and the kernel that adds to them",
     "DilatedMaxPool2d.cu: max_pool2d_with_indices_backward_out_cuda, and its like"},
    {"reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
     "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
     "grid_sampler_2d_backward grid_sampler_3d_backward embedding_dense_backward nll_loss_backward "
     "nll_loss2d_backward unfold_backward mse_loss_backward smooth_l1_loss_backward",
     &one_more, "zeros, and the kernel that adds to them",
     "ReplicationPadding.cu, ReflectionPad.cu, GridSampler.cpp, Embedding.cu, NLLLoss.cu, "
     "UnfoldBackward.cpp, Loss.cpp: zeros_like, zero_"},
    {"_softmax_backward_data", &one_more, "gradient times output, and the rest of the formula",
     "SoftMax.cu: softmax_backward_cuda_out"},
    {"mse_loss smooth_l1_loss huber_loss", &reduced, "the loss, and its reduction",
     "Loss.cpp: mse_loss_out, smooth_l1_loss_out"},
    {"binary_cross_entropy", &reduced_and_copied, "the loss, its reduction, and a copy of that",
     "Loss.cu: binary_cross_entropy_out_cuda"},
    {"binary_cross_entropy_backward", &divided, "the gradient, and its quotient by the count",
     "Loss.cu: binary_cross_entropy_backward_out_cuda"},
    {"nll_loss_forward", &per_class, "without a reduction zeros for the sum of weights, and the loss",
     "NLLLoss.cu: nll_loss_forward_out_cuda_template"},
    {"dot vdot", &one_more, "products, and their sum", "cuBLAS: dot_kernel, reduce_1Block_kernel"},
    {"addmm baddbmm addmv", &with_addend, "a copy of the addend unless it is a vector, and the product",
     "Blas.cpp: addmm_out_cuda_impl, baddbmm_out_cuda_impl, addmv_out_cuda"},
    {"addbmm", &by_batch, "a copy of the addend, and a product per matrix",
     "LinearAlgebra.cpp: addbmm_impl_"},
    {"sum.dim_IntList sum.IntList_out nansum", &of_integers,
     "of bool and small integers a copy as int64, and the sum",
     "ReduceOpsUtils.h: make_reduction_from_ty"},
    {"all any", &of_bools, "of other dtypes than bool a copy as bool, and the reduction",
     "ReduceOps.cpp: allany_impl"},
    {"cumsum cumprod", &scan, "of one dimension CUB's two kernels",
     "ScanUtils.cuh: scan_dim; cub::DeviceScan"},
    {"native_layer_norm", &layer_norm, "statistics and the norm; one kernel for rows of multiples of 4",
     "layer_norm_kernel.cu: LayerNormKernelImplInternal"},
    {"native_layer_norm_backward", &one_more, "the input's gradient, and the parameters'",
     "layer_norm_kernel.cu: LayerNormBackwardKernelImplInternal"},
    {"native_group_norm", &group_norm, "statistics, factors, and the norm",
     "group_norm_kernel.cu: GroupNormKernelImplInternal"},
    {"native_group_norm_backward", &group_norm_backward,
     "sums, two kernels of factors, the input's gradient, and the parameters'",
     "group_norm_kernel.cu: GroupNormBackwardKernelImplInternal"},
    {"pow.Scalar", &one_more, "the base as a tensor, and the power", "Pow.cpp: pow_Scalar_out"},
    {"count_nonzero.dim_IntList", &group_norm, "the comparison, its copy as int64, and the sum",
     "TensorAdvancedIndexing.cpp: count_nonzero_cuda"},
    {"equal", &group_norm, "the comparison, its reduction, and a copy to the host",
     "cuda/Equal.cpp: cuda_equal"},
    {"_fft_c2c", &complex_transform,
     "a copy if the other dimensions do not merge, one kernel per dimension, the scale",
     "SpectralOps.cpp: _exec_fft, _fft_apply_normalization; an H100's lists"},
    {"_fft_r2c", &of_real, "the same, and the other half of a whole spectrum",
     "SpectralOps.cpp: _fft_r2c_cufft"},
    {"_fft_c2r", &to_real, "a copy of the input, and the same", "SpectralOps.cpp: _fft_c2r_cufft"},
    {"roll", &per_axis, "one kernel per axis", "TensorTransformations.cpp: roll_common"},
};

const std::unordered_map<std::string_view, const Row*>& table() {
  static const auto* const kTable = [] {
    auto* made = new std::unordered_map<std::string_view, const Row*>;
    for (const Row& row : kRows) {
      std::string_view left = row.operators;
      while (!left.empty()) {
        const std::size_t end = std::min(left.find(' '), left.size());
        made->emplace(left.substr(0, end), &row);
        left.remove_prefix(std::min(end + 1, left.size()));
      }
    }
    return made;
  }();
  return *kTable;
}

}  // namespace

}  // namespace kernel_counts

void note_kernels(std::string_view op, TensorPointers operands, const CallArguments& arguments) {
  constexpr std::string_view kSpace = "aten::";
  if (op.substr(0, kSpace.size()) != kSpace) return;
  const auto row = kernel_counts::table().find(op.substr(kSpace.size()));
  if (row != kernel_counts::table().end()) profile_as_kernels(row->second->count({operands, arguments}));
}

std::vector<KernelsRow> cuda_kernels() {
  std::vector<KernelsRow> rows;
  for (const kernel_counts::Row& row : kernel_counts::kRows) rows.push_back({row.operators, row.kernels, row.source});
  return rows;
}

}  // namespace torch_npusim
