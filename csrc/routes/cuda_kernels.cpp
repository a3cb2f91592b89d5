// SPDX-License-Identifier: BSD-3-Clause
// The table of CUDA's kernels per operator. Functions named in `source` are where they are
// launched; files are those of aten/src/ATen/native and its folder cuda.
#include "csrc/routes/cuda_kernels.h"

#include <c10/util/irange.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "backend/backend.h"
#include "csrc/routes/cub_buffers.h"
#include "csrc/routes/cuda_temporaries_rows.h"

namespace torch_npusim {

bool transform_must_copy(const at::TensorBase& self, at::IntArrayRef strides,
                         at::IntArrayRef dims) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> batch;  // stride, size
  for (const auto d : c10::irange(self.dim())) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end() || self.size(d) == 1) continue;
    batch.emplace_back(strides[static_cast<std::size_t>(d)], self.size(d));
  }
  std::sort(batch.begin(), batch.end());
  for (std::size_t i = 1; i < batch.size(); ++i) {
    if (batch[i].first != batch[i - 1].first * batch[i - 1].second) return true;
  }
  return false;
}

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

// Four elements are loaded at once where a row, which is as wide as the weight, is a multiple of
// four.
int layer_norm(const Call& call) {
  return call.operands.size() > 1 && call.operand(1).numel() % 4 == 0 ? 1 : 2;
}
// The weight comes first in csrc/aten/rms_norm.cpp.
int rms_norm(const Call& call) {
  return call.operand(0).defined() && call.operand(0).numel() % 4 == 0 ? 1 : 2;
}
int rms_norm_backward(const Call& call) { return call.operand(0).defined() ? 2 : 1; }

int group_norm(const Call&) { return 3; }
int group_norm_backward(const Call&) { return 5; }

// --- Fourier transforms

// The copies, one kernel per dimension, and the scale unless there is none.
int transform(const Call& call, at::IntArrayRef strides, int copies) {
  auto dims = call.arguments.dims;
  for (int64_t& dim : dims) dim += dim < 0 ? call.operand(0).dim() : 0;
  const bool scaled = call.arguments.second.value_or(0) != 0;
  return copies + static_cast<int>(dims.size()) +
         (transform_must_copy(call.operand(0), strides, dims) ? 1 : 0) + (scaled ? 1 : 0);
}
int complex_transform(const Call& call) { return transform(call, call.operand(0).strides(), 0); }
// The other half of a whole spectrum is filled in.
int of_real(const Call& call) {
  const bool whole = !call.arguments.flag.value_or(true);
  return transform(call, call.operand(0).strides(), whole ? 1 : 0);
}
// cuFFT destroys its input, so that is copied, without gaps.
int to_real(const Call& call) {
  return transform(call, c10::contiguous_strides(call.operand(0).sizes()), 1);
}

// --- matrices

// Copies of the operands that CUDA writes to, a list of pointers for each operand, and the solver.
template <int copies, int solver>
int by_pointers(const Call&) {
  return copies + 2 + solver;
}

// --- indices

// Axes are rolled one after the other.
int per_axis(const Call& call) {
  return std::max<int>(1, static_cast<int>(call.arguments.dims.size()));
}
// Not counting what was there: places are reset first.
// A mean counts: ones, their sum, zeros that become ones, and the quotient.
constexpr int kCounting = 6;
int scatter_reduce(const Call& call) {
  const int sums = call.arguments.flag.value_or(true) ? 2 : 4;
  return sums + (call.arguments.word == "mean" ? kCounting : 0);
}
int index_reduce(const Call& call) { return call.arguments.word == "mean" ? 2 + kCounting : 2; }
int top(const Call& call) { return call.number() > 1 ? 2 : 1; }
int maxima_and_their_sum(const Call&) { return 9; }
// Triangles and a diagonal; with pivots the permutation and its matrix.
int unpack(const Call& call) {
  const auto& flags = call.arguments.flags;
  return flags.empty() || flags.back() ? 7 : 3;
}
int index_put(const Call& call) { return call.arguments.flag.value_or(false) ? 6 : 1; }

int nonzero(const Call& call) {
  const int64_t dims = call.operand(0).dim();
  return dims == 0 ? 2 : dims == 1 ? 4 : 5;
}
int masked_select(const Call& call) { return 1 + (call.operand(0).dim() <= 1 ? 4 : 5); }
int masked_scatter(const Call&) { return 4; }
int sort(const Call& call) {
  constexpr int64_t kSmall = 4096;
  const at::TensorBase& self = call.operand(0);
  const int64_t row = self.dim() == 0 ? 1 : self.size(call.number());
  return row > kSmall ? 8 : row > 1 ? 5 : 4;
}

// CUB's radix sort: one tile at once, or counts, their sums, and a pass for each byte of a key.
int radix_sort(int64_t count, int64_t most) {
  int bytes = 1;
  while (bytes < 8 && most > (int64_t{1} << (8 * bytes))) ++bytes;
  return static_cast<double>(count) <= kOneTile ? 1 : 2 + bytes;
}
// Operands: the gradient, the indices; the first number is that of the weight's rows.
int sorted_embedding(const Call& call) {
  return 11 + radix_sort(call.operand(1).numel(), call.number());
}
int embedding_backward(const Call& call) {
  return static_cast<double>(call.operand(1).numel()) > kFewIndices ? sorted_embedding(call) : 2;
}
int embedding_bag_backward(const Call& call) {
  return sums_bags(call.arguments) ? sorted_embedding(call) : 2;
}
int distinct(const Call& call) {
  return radix_sort(call.operand(0).numel(), std::numeric_limits<int64_t>::max()) + 3;
}

// Ten kernels check the values, a sum over rows takes one more; then a draw for each class, a
// quotient, and the largest.
int multinomial(const Call& call) {
  const bool several = call.number() > 1;
  if (several && call.arguments.flag.value_or(false)) return 1;
  return (call.operand(0).dim() > 1 ? 11 : 10) + 2 + (several ? 2 : 1);
}
int unfold_backward(const Call& call) { return call.arguments.dims.empty() ? 2 : 3; }
int ctc_loss(const Call&) { return 5; }
int ctc_loss_backward(const Call&) { return 8; }
// Distances of one point are none.
int distances(const Call& call) { return call.operand(0).size(0) > 1 ? 1 : 0; }

struct Row {
  const char* operators;
  int (*count)(const Call& call);
  const char* kernels;
  const char* source;
};

constexpr Row kRows[] = {
    {"masked_fill.Scalar masked_fill.Tensor index_add index_copy scatter.src "
     "scatter.value scatter_add index_fill.int_Scalar",
     &one_more, "a copy of self, and the kernel that changes it",
     "TensorAdvancedIndexing.cpp: scatter_impl, masked_fill; Indexing.cu: index_add_cuda_out"},
    {"scatter_reduce.two", &scatter_reduce, "the same; without self four, in an H100's list",
     "TensorAdvancedIndexing.cpp: scatter_impl, scatter_reduce_exclude_self_helper"},
    {"index_reduce", &index_reduce,
     "a copy of self and the values; of means the counts and a quotient",
     "Indexing.cu: index_reduce_func_cuda_impl"},
    {"_index_put_impl_", &index_put,
     "of sums of one index the index in elements, numbers, copies, the sort and the sums: six in "
     "an H100's list",
     "Indexing.cu: index_put_with_sort_kernel"},
    {"index_fill_.int_Tensor", &one_more, "a copy of the value to the host, and the fill",
     "TensorAdvancedIndexing.cpp: index_fill_"},
    {"topk", &top, "the values, and their sort", "TensorTopK.cpp: topk_out_cuda"},
    {"logsumexp", &maxima_and_their_sum,
     "maxima, their size, a comparison, a fill, differences, powers, sums, logarithms, and maxima "
     "again",
     "ReduceOps.cpp: logsumexp_out_impl"},
    {"lu_unpack", &unpack,
     "two triangles, a diagonal, the permutation and its matrix: seven in an H100's lists",
     "LinearAlgebra.cpp: lu_unpack_out"},
    {"eye.m_out", &one_more, "zeros, and the diagonal", "TensorFactories.cu: eye_out_cuda"},
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
     "grid_sampler_2d_backward grid_sampler_3d_backward nll_loss_backward "
     "nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward",
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
    {"nll_loss_forward", &per_class,
     "without a reduction zeros for the sum of weights, and the loss",
     "NLLLoss.cu: nll_loss_forward_out_cuda_template"},
    {"dot vdot", &one_more, "products, and their sum", "cuBLAS: dot_kernel, reduce_1Block_kernel"},
    {"addmv", &one_more, "a copy of the addend, and the product", "Blas.cpp: addmv_out_cuda"},
    {"addmm baddbmm", &with_addend, "a copy of the addend unless it is a vector, and the product",
     "Blas.cpp: addmm_out_cuda_impl, baddbmm_out_cuda_impl"},
    {"addbmm", &by_batch, "a copy of the addend, and a product per matrix",
     "LinearAlgebra.cpp: addbmm_impl_"},
    {"sum.dim_IntList sum.IntList_out nansum", &of_integers,
     "of bool and small integers a copy as int64, and the sum",
     "ReduceOpsUtils.h: make_reduction_from_ty"},
    {"all any", &of_bools, "of other dtypes than bool a copy as bool, and the reduction",
     "ReduceOps.cpp: allany_impl"},
    {"cumsum cumprod", &scan, "of one dimension CUB's two kernels",
     "ScanUtils.cuh: scan_dim; cub::DeviceScan"},
    {"native_layer_norm", &layer_norm,
     "statistics and the norm; one kernel for rows of multiples of 4",
     "layer_norm_kernel.cu: LayerNormKernelImplInternal"},
    {"_fused_rms_norm", &rms_norm, "as of layer norms",
     "layer_norm_kernel.cu: _fused_rms_norm_cuda"},
    {"_fused_rms_norm_backward", &rms_norm_backward, "the input's gradient, and the weight's",
     "layer_norm_kernel.cu: _fused_rms_norm_backward_cuda"},
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
    {"linalg_solve_triangular", &by_pointers<1, 1>,
     "a copy of the right side, two lists of pointers, and the solver",
     "BatchLinearAlgebra.cpp: triangular_solve_kernel, get_device_pointers"},
    {"triangular_solve", &by_pointers<2, 1>,
     "copies of both sides, two lists of pointers, and the solver",
     "BatchLinearAlgebra.cpp: triangular_solve_out_impl"},
    {"linalg_lu_solve", &by_pointers<1, 3>,
     "a copy of the right side, two lists of pointers, pivots and two solvers, in an H100's list",
     "BatchLinearAlgebra.cpp: lu_solve_kernel; cublasXgetrsBatched"},
    {"upsample_linear1d upsample_bicubic2d", &one_more, "zeros, and the result",
     "UpSampleLinear1d.cu, UpSampleBicubic2d.cu: output.zero_()"},
    {"renorm", &group_norm, "the norms, their factors, and the product",
     "ReduceOps.cpp: renorm_out"},
    {"nonzero", &nonzero,
     "a count of one kernel and its copy to the host; then CUB's two, and one for several "
     "dimensions",
     "Nonzero.cu: nonzero_cuda_out_impl"},
    {"masked_select", &masked_select, "nonzero and an index",
     "IndexKernel.cpp: masked_select_out_cuda_impl"},
    {"masked_scatter_", &masked_scatter,
     "a check of sizes, CUB's two kernels of a scan, and the values",
     "IndexKernel.cu: launch_masked_scatter_kernel"},
    {"sort.stable", &sort,
     "numbers of the row, copies of these and of the values, and the sort of more than one: four, "
     "five, and eight of a long row, in an H100's lists",
     "Sort.cpp: sort_cuda_kernel; SortStable.cu: segmented_sort_large_segments"},
    {"embedding_dense_backward", &embedding_backward,
     "zeros, and the kernel that adds to them; of more than 3,072 indices as of bags",
     "Embedding.cu: embedding_dense_backward_cuda"},
    {"_embedding_bag_backward _embedding_bag_dense_backward", &embedding_bag_backward,
     "numbers, their sort, zeros, CUB's selection and scan in two kernels each, and five of "
     "segments; of maxima zeros and a kernel",
     "EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel"},
    {"_unique2", &distinct, "the sort, CUB's two kernels of a selection, and a copy to the host",
     "Unique.cu: unique_cuda_template"},
    {"multinomial", &multinomial,
     "ten of checks, one more for rows, a draw for each class, a quotient, and the largest",
     "Distributions.cpp: multinomial_out"},
    {"_ctc_loss", &ctc_loss, "three copies of lengths, a fill, and the alphas",
     "LossCTC.cu: ctc_loss_gpu_template"},
    {"_ctc_loss_backward", &ctc_loss_backward,
     "three copies of lengths, two fills, the betas, and two of gradients",
     "LossCTC.cu: ctc_loss_backward_gpu_template"},
    {"_chunk_cat", &one_more, "a copy of a table, and the kernel",
     "TensorShape.cu: _chunk_cat_out_cuda_contiguous"},
    {"unfold_backward", &unfold_backward, "zeros, numbers of places, and the kernel",
     "UnfoldBackward.h: _make_unfold_backward_iter_over_grad_out"},
    {"_pdist_forward", &distances, "none for one point",
     "DistanceKernel.cu: pdist_forward_kernel_impl"},
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

void count_kernels(std::string_view op, TensorPointers operands, const CallArguments& arguments) {
  constexpr std::string_view kSpace = "aten::";
  if (op.substr(0, kSpace.size()) != kSpace) return;
  const auto row = kernel_counts::table().find(op.substr(kSpace.size()));
  if (row != kernel_counts::table().end())
    npusim::launches(row->second->count({operands, arguments}));
}

std::vector<KernelsRow> cuda_kernels() {
  std::vector<KernelsRow> rows;
  for (const kernel_counts::Row& row : kernel_counts::kRows)
    rows.push_back({row.operators, row.kernels, row.source});
  return rows;
}

}  // namespace torch_npusim
