// SPDX-License-Identifier: BSD-3-Clause
// The table of CUDA's temporaries. Sizes are those of torch 2.13; functions named in `source` are
// where they are decided.
#include "csrc/routes/cuda_temporaries.h"

#include <ATen/OpMathType.h>
#include <ATen/ceil_div.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/routes/cub_buffers.h"
#include "csrc/routes/cuda_kernels.h"
#include "csrc/routes/cuda_reduction.h"
#include "csrc/routes/cuda_temporaries_rows.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/profiler.h"

namespace torch_npusim {

namespace {

using Call = TemporariesCall;

// --- cuBLAS

// cuBLAS takes a matrix if one of its two strides is 1 and the other reaches over a row.
bool needs_copy(const at::TensorBase& tensor) {
  if (tensor.dim() < 2 || tensor.numel() == 0) return false;
  const int64_t rows = tensor.size(-2), columns = tensor.size(-1);
  const int64_t down = tensor.stride(-2), right = tensor.stride(-1);
  const bool by_rows = (right == 1 || columns == 1) && down >= std::max<int64_t>(1, columns);
  const bool by_columns = (down == 1 || rows == 1) && right >= std::max<int64_t>(1, rows);
  return !by_rows && !by_columns;
}

void product(const Call& call) {
  std::vector<c10::DataPtr> copies;
  // The factors come last.
  for (std::size_t i = call.operands.size() - 2; i < call.operands.size(); ++i) {
    if (call.operands[i]->is_privateuseone() && needs_copy(*call.operands[i])) {
      copies.push_back(allocate_on_device(static_cast<std::size_t>(call.bytes(i)), call.device));
    }
  }
  keep_workspaces_of_product(call.operands, call.device);
}

void workspace(const Call& call) { keep_cublas_workspace(call.device); }

// --- reductions

template <int bytes_per_value>  // 0: those of the input
void reduction(const Call& call) {
  const at::TensorBase& input = *call.operands[0];
  if (input.numel() == 0) return;
  const ReductionLayout layout =
      reduction_layout(input, call.arguments.dims, npusim::device_spec(call.device));
  if (layout.blocks == 1) return;
  const auto item = bytes_per_value != 0 ? bytes_per_value : static_cast<int>(input.itemsize());
  double buffer = static_cast<double>(item) * static_cast<double>(layout.outputs * layout.blocks);
  if (!layout.across_width) buffer *= static_cast<double>(layout.width * layout.vector);
  allocated_together({buffer, 4.0 * static_cast<double>(layout.grid())}, call.device);
}

double opmath_bytes(const at::TensorBase& tensor) {
  return static_cast<double>(c10::elementSize(at::toOpMathType(tensor.scalar_type())));
}

// Sums of integers are sums of int64, of a copy.
void sum(const Call& call) {
  const at::ScalarType dtype = call.operands[0]->scalar_type();
  c10::DataPtr copy;
  if (at::isIntegralType(dtype, /*includeBool=*/true) && dtype != at::kLong) {
    copy = allocate_on_device(static_cast<std::size_t>(8 * call.numel(0)), call.device);
  }
  reduction<4>(call);
}

void bools(const Call& call) {
  const at::ScalarType dtype = call.operands[0]->scalar_type();
  if (dtype == at::kBool || dtype == at::kByte) return;
  allocated_together({call.numel(0)}, call.device);
}

void copy_of_bools(const Call& call) { allocated_together({8 * call.numel(0)}, call.device); }

void comparison(const Call& call) { allocated_together({call.numel(0), 1}, call.device); }

void unreduced(const Call& call) {
  if (call.arguments.dims.empty() || call.arguments.dims[0] == 0) return;
  allocated_together({call.bytes(0)}, call.device);
}

void product_with_gradient(const Call& call) { allocated_together({call.bytes(0)}, call.device); }

void wrapped_number(const Call& call) { allocated_together({8}, call.device); }

void norm_of_each(const Call& call) {
  const auto& dims = call.arguments.dims;
  if (dims.empty() || call.operands[0]->dim() == 0) return;
  const auto sizes = static_cast<double>(call.operands[0]->size(dims[0]));
  allocated_together({opmath_bytes(*call.operands[0]) * sizes}, call.device);
}

// Factors and shifts per image and channel.
void group_norm(const Call& call) {
  const auto& numbers = call.arguments;
  const double channels = static_cast<double>(numbers.dims[0] * numbers.second.value_or(0));
  const double bytes = opmath_bytes(*call.operands[0]) * channels;
  allocated_together({bytes, bytes}, call.device);
}

// Operands: the gradient, the input, the mean. Two sums per channel, two factors per group, one per
// channel.
void group_norm_backward(const Call& call) {
  const auto& numbers = call.arguments;
  const double item = opmath_bytes(*call.operands[1]);
  const double channel = item * static_cast<double>(numbers.dims[0] * numbers.second.value_or(0));
  const double group = item * call.numel(2);
  allocated_together({channel, channel, group, group, channel}, call.device);
}

// --- Fourier transforms

template <bool destroys>
void transform(const Call& call) {
  auto dims = call.arguments.dims;
  const at::TensorBase& self = *call.operands[0];
  for (int64_t& dim : dims) dim += dim < 0 ? self.dim() : 0;
  const auto dense = c10::contiguous_strides(self.sizes());
  const double copy =
      transform_must_copy(self, destroys ? at::IntArrayRef(dense) : self.strides(), dims)
          ? call.bytes(0)
          : 0;
  allocated_together({destroys ? call.bytes(0) : 0, copy}, call.device);
}

// --- matrices

bool is_dense(const at::TensorBase& matrix) {
  return matrix.is_contiguous() || at::Tensor(matrix).mT().is_contiguous();
}

// A list of pointers for each operand.
void pointers(const Call& call) {
  const at::TensorBase& matrix = *call.operands[0];
  const double count = call.numel(0) / static_cast<double>(matrix.size(-1) * matrix.size(-2));
  allocated_together({8 * count, 8 * count}, call.device);
}
void triangle(const Call& call) {
  const auto copy = call.block(is_dense(*call.operands[0]) ? 0 : call.bytes(0));
  pointers(call);
}
// The permutation of the rows, if it is asked for.
void permutation(const Call& call) {
  if (!call.arguments.flags.empty() && !call.arguments.flags.back()) return;
  allocated_together({8 * call.numel(0) / static_cast<double>(call.operands[0]->size(-1))},
                     call.device);
}
// A factorisation, its pivots and error codes; then the permutation.
void lu(const Call& call) {
  const at::TensorBase& matrix = *call.operands[0];
  const double rows = static_cast<double>(matrix.size(-2)),
               columns = static_cast<double>(matrix.size(-1));
  const double count = call.numel(0) / std::max(1.0, rows * columns);
  auto copy = call.block(call.bytes(0));
  const auto pivots = call.block(4 * count * std::min(rows, columns)),
             errors = call.block(4 * count);
  copy.clear();
  allocated_together({8 * count * rows}, call.device);
}

// --- indices

// One dimension is CUB's scan.
void scan(const Call& call) {
  const at::TensorBase& self = *call.operands[0];
  const auto& dims = call.arguments.dims;
  if (self.numel() == 0 || dims.empty()) return;
  if (self.dim() > 0 && self.numel() != self.size(dims[0])) return;
  allocated_together({self.itemsize() > 4 ? kScan : kSmallScan}, call.device);
}

// Rows of up to 4,096 are sorted in place beside their numbers; a longer one by CUB's radix sort.
void sort(const Call& call) {
  constexpr int64_t kSmall = 4096;
  const at::TensorBase& self = *call.operands[0];
  const auto& dims = call.arguments.dims;
  if (self.numel() == 0 || self.dim() == 0 || dims.empty()) return;
  const int64_t row = self.size(dims[0]);
  const auto numbers = kIndex * static_cast<double>(row);
  if (row <= kSmall) {
    allocated_together({numbers}, call.device);
  } else if (row == self.numel()) {
    const auto key = static_cast<double>(self.itemsize());
    allocated_together({numbers, sort_buffer(static_cast<double>(row), key)}, call.device);
  }
}

// CUB's selection; the count comes before the result, in csrc/routes/dry_rules.cpp.
void selection(const Call& call) {
  if (call.operands[0]->dim() > 0) allocated_together({kSmallScan}, call.device);
}

// The length, and CUB's selection of what differs.
void distinct(const Call& call) { allocated_together({8, kSmallScan}, call.device); }

// Numbers of the result's places along the dimension.
void places(const Call& call) {
  const auto& numbers = call.arguments;
  const auto rank = static_cast<int64_t>(numbers.dims.size());
  if (rank == 0) return;
  const int64_t dim = (numbers.second.value_or(0) + rank) % rank;
  allocated_together({kIndex * static_cast<double>(numbers.dims[static_cast<std::size_t>(dim)])},
                     call.device);
}

// Whether all values are valid, and their sum is not zero; then a value for each class, and those
// of several draws. Draws with replacement walk over sums instead.
void multinomial(const Call& call) {
  const at::TensorBase& self = *call.operands[0];
  const int64_t draws = call.arguments.dims.empty() ? 1 : call.arguments.dims[0];
  if (draws > 1 && call.arguments.flag.value_or(false)) return;
  const auto item = static_cast<double>(self.itemsize());
  const double rows = self.dim() > 1 ? static_cast<double>(self.size(0)) : 1;
  auto most = call.block(item), below = call.block(1), least = call.block(item),
       above = call.block(1);
  const auto valid = call.block(1);
  for (c10::DataPtr* each : {&above, &least, &below, &most}) each->clear();
  auto sum = call.block(item * rows);
  const auto zero = call.block(rows);
  sum.clear();
  allocated_together({1}, call.device);
  const double values = draws > 1 ? item * rows * static_cast<double>(draws) : 0;
  allocated_together({call.bytes(0), values}, call.device);
}

// A table of pointers, sizes and begins for each tensor, and the tensor of each block of 2,048
// bytes of a chunk. The first number is the dimension, the second how many chunks.
void chunk_cat(const Call& call) {
  constexpr int64_t kBlock = 2048;
  const int64_t chunks = std::max<int64_t>(call.arguments.second.value_or(1), 1);
  int64_t blocks = 0;
  for (const at::TensorBase* tensor : call.operands) {
    const int64_t rank = tensor->dim(),
                  given = call.arguments.dims.empty() ? 0 : call.arguments.dims[0];
    const int64_t dim = rank == 0 ? 0 : (given + rank) % rank;
    int64_t chunk = rank == 0 ? 1 : at::ceil_div(tensor->size(dim), chunks);
    for (int64_t d = dim + 1; d < rank; ++d) chunk *= tensor->size(d);
    blocks += at::ceil_div(chunk * static_cast<int64_t>(tensor->itemsize()), kBlock);
  }
  const auto tensors = static_cast<int64_t>(call.operands.size());
  allocated_together({8.0 * static_cast<double>(6 * tensors + 2 + blocks)}, call.device);
}

// The mask's running sum, and CUB's scan.
void masked_scatter(const Call& call) {
  allocated_together({8 * call.numel(1), kScan}, call.device);
}

// A mean counts: the counts, ones that are added to them, and which are zero.
void index_reduce(const Call& call) {
  if (call.arguments.word != "mean") return;
  const auto held = [&](double bytes) {
    return allocate_on_device(static_cast<std::size_t>(bytes), call.device);
  };
  const auto counts = held(call.bytes(0));
  allocated_together({call.bytes(2)}, call.device);
  const auto zeros = held(call.numel(0));
}
void scatter_reduce(const Call& call) {
  if (call.arguments.word != "mean") return;
  allocated_together({call.bytes(2), call.bytes(0), call.numel(0)}, call.device);
}

// Operands: the gradient, the indices, which are sorted; the first number is that of the weight's
// rows.
void segments(const Call& call) {
  const double count = call.numel(1);
  const double index = call.bytes(1);
  const auto& numbers = call.arguments.dims;
  const double rows = numbers.empty() ? count : static_cast<double>(numbers[0]);
  const double segments = std::min(count, rows);
  const double parts = std::floor(count / 10) + segments;  // at most; ten rows make a part
  const double per_value = std::max<double>(4, static_cast<double>(call.operands[0]->itemsize()));
  const double width = static_cast<double>(call.operands[0]->size(-1));
  const auto offsets = call.block(index), number = call.block(8);
  allocated_together({index, kScan}, call.device);
  const double in_segments = index / count * segments;
  const auto per_segment = call.block(in_segments), first_of_segment = call.block(in_segments);
  allocated_together({kScan}, call.device);
  allocated_together({8, index / count * parts, width * per_value * parts}, call.device);
}
void embedding_backward(const Call& call) {
  if (call.numel(1) > kFewIndices) segments(call);
}
void embedding_bag_backward(const Call& call) {
  if (sums_bags(call.arguments) && call.numel(1) > 0) segments(call);
}

// Operands: self, the indices, the values. Without accumulate CUDA needs nothing.
void index_put(const Call& call) {
  if (!call.arguments.flag.value_or(false)) return;
  double count = 1;
  for (std::size_t i = 1; i + 1 < call.operands.size(); ++i) {
    count = std::max(count, call.numel(i));
  }
  const at::TensorBase& values = *call.operands[call.operands.size() - 1];
  const double copied = values.is_contiguous() ? 0 : call.bytes(call.operands.size() - 1);
  const double index = kIndex * count;
  auto wrapped = allocate_on_device(static_cast<std::size_t>(index), call.device);
  const auto linear = allocate_on_device(static_cast<std::size_t>(index), call.device);
  wrapped.clear();
  allocated_together({index, index, copied, index, sort_buffer(count)}, call.device);
}

// One value of the accumulation's dtype for each chunk of the largest tensor, and for each tensor.
template <bool wide>
void chunks(const Call& call) {
  constexpr int64_t kChunk = 65536;
  int64_t most = 0;
  for (const at::TensorBase* tensor : call.operands) {
    most = std::max(most, at::ceil_div(tensor->numel(), kChunk));
  }
  const at::ScalarType dtype = call.operands[0]->scalar_type();
  const auto item = static_cast<int64_t>(c10::elementSize(wide ? at::toOpMathType(dtype) : dtype));
  const auto tensors = static_cast<int64_t>(call.operands.size());
  allocated_together({static_cast<double>(tensors * most * item)}, call.device);
}

void nothing(const Call& /*call*/) {}  // the kernel of the dry run allocates them

constexpr const char* kBlas = "CublasHandlePool.cpp: getNewWorkspace, parseChosenWorkspaceSize";
constexpr const char* kBlasWhat =
    "the handle's workspace, kept: 32 MiB on compute capability 9, 10 and 12, else 8,519,680 "
    "bytes; "
    "a copy of an operand that is neither row-major nor column-major";
constexpr const char* kBlasWhen =
    "first product of a thread on a stream; CUBLAS_WORKSPACE_CONFIG changes the size";
constexpr const char* kReduce = "Reduce.cuh: setReduceConfig, global_memory_size";
constexpr const char* kReduceWhen =
    "several blocks share an output: at least 256 values per thread, and fewer blocks than the "
    "device holds";

constexpr const char* kCast = "ReduceOps.cpp: allany_impl";
constexpr const char* kFourier = "SpectralOps.cpp: _exec_fft, _fft_c2r_cufft";
constexpr const char* kFourierWhen = "the other dimensions do not merge into one; c2r: always one";
constexpr const char* kPointers = "BatchLinearAlgebra.cpp: get_device_pointers";
constexpr const char* kCub = "ScanUtils.cuh: scan_dim; an H100's lists";

constexpr const char* kConvolution = "Conv_v8.cpp: run_conv_plan; csrc/aten/convolution.cpp";

constexpr TemporariesOf kRows[] = {
    {"aten::mm", &product, kBlasWhat, kBlas, kBlasWhen},
    {"aten::addmm", &product,
     "the same; and for a bias that is a vector 1 MiB more, kept, of cublasLt", kBlas,
     "the same; cublasLt: steps of small models on an H100 under torch 2.11, where each thread and "
     "stream that has such a product holds 1,048,576 bytes more"},
    {"aten::addmm_", &product, kBlasWhat, kBlas, kBlasWhen},
    {"aten::bmm", &product, kBlasWhat, kBlas, kBlasWhen},
    {"aten::baddbmm", &product, kBlasWhat, kBlas, kBlasWhen},
    {"aten::addbmm", &product, kBlasWhat, kBlas, kBlasWhen},
    {"aten::mv", &workspace, kBlasWhat, kBlas, kBlasWhen},
    {"aten::addmv", &workspace, kBlasWhat, kBlas, kBlasWhen},
    {"aten::dot", &workspace, kBlasWhat, kBlas, kBlasWhen},
    {"aten::_scaled_mm", &workspace, kBlasWhat, kBlas, kBlasWhen},
    {"aten::sum.dim_IntList", &sum,
     "partial sums in float, and a counter per output; of bool and small integers a copy as int64",
     kReduce, kReduceWhen},
    {"aten::sum.IntList_out", &sum, "the same", kReduce, kReduceWhen},
    {"aten::all", &bools, "a copy as bool", kCast, "of other dtypes than bool"},
    {"aten::any", &bools, "a copy as bool", kCast, "of other dtypes than bool"},
    {"aten::count_nonzero.dim_IntList", &copy_of_bools, "the comparison's copy as int64",
     "ReduceOpsUtils.h: make_reduction_from_ty", "always"},
    {"aten::equal", &comparison, "the comparison, and its reduction", "Equal.cpp: cuda_equal",
     "always"},
    {"aten::mse_loss", &unreduced, "the loss of each element", "Loss.cpp: mse_loss_out",
     "a reduction"},
    {"aten::smooth_l1_loss", &unreduced, "the loss of each element", "Loss.cpp: smooth_l1_loss_out",
     "a reduction"},
    {"aten::binary_cross_entropy", &unreduced, "the loss of each element",
     "Loss.cu: binary_cross_entropy_out_cuda", "a reduction"},
    {"aten::_softmax_backward_data", &product_with_gradient, "gradient times output",
     "SoftMax.cu: softmax_backward_cuda_out", "always"},
    {"aten::pow.Scalar", &wrapped_number, "the base as a tensor", "Pow.cpp: pow_Scalar_out",
     "always"},
    {"aten::renorm", &norm_of_each, "a norm for each slice", "ReduceOps.cpp: renorm_out", "always"},
    {"aten::native_group_norm", &group_norm, "a factor and a shift per image and channel",
     "group_norm_kernel.cu: GroupNormKernelImplInternal", "always"},
    {"aten::native_group_norm_backward", &group_norm_backward,
     "two sums per channel, two factors per group, and one per channel",
     "group_norm_kernel.cu: GroupNormBackwardKernelImplInternal", "always"},
    {"aten::_fft_c2c", &transform<false>, "a copy of the input", kFourier, kFourierWhen},
    {"aten::_fft_r2c", &transform<false>, "a copy of the input", kFourier, kFourierWhen},
    {"aten::_fft_c2r", &transform<true>, "a copy of the input, and the same", kFourier,
     kFourierWhen},
    {"aten::linalg_solve_triangular", &triangle,
     "two lists of pointers to matrices; a copy of the triangle",
     "BatchLinearAlgebra.cpp: linalg_solve_triangular_out, get_device_pointers",
     "the copy: neither it nor its transpose is contiguous"},
    {"aten::triangular_solve", &pointers, "two lists of pointers to matrices", kPointers, "always"},
    {"aten::linalg_lu_solve", &pointers, "two lists of pointers to matrices", kPointers, "always"},
    {"aten::lu_unpack", &permutation, "the permutation of the rows",
     "LinearAlgebra.cpp: lu_unpack_out", "pivots are unpacked"},
    {"aten::linalg_lu", &lu, "a factorisation, its pivots and error codes; then the permutation",
     "BatchLinearAlgebra.cpp: linalg_lu_out", "always"},
    {"aten::cumsum", &scan, "CUB's scan", kCub, "one dimension"},
    {"aten::cumprod", &scan, "CUB's scan", kCub, "one dimension"},
    {"aten::sort.stable", &sort,
     "numbers of a row of up to 4,096; of one longer row CUB's radix sort",
     "Sort.cpp: sort_cuda_kernel; Sort.cu: should_use_small_sort", "always"},
    {"aten::nonzero", &selection, "the count, held; CUB's sum and its selection",
     "Nonzero.cu: nonzero_cuda_out_impl", "always; masks of other operators likewise"},
    {"aten::_unique2", &distinct, "the length, and CUB's selection",
     "Unique.cu: unique_cuda_template", "always"},
    {"aten::unfold_backward", &places, "numbers of places along the dimension",
     "UnfoldBackward.h: _make_unfold_backward_iter_over_grad_out", "always"},
    {"aten::multinomial", &multinomial,
     "checks of the values, a value for each class, and those of several draws",
     "Distributions.cpp: multinomial_out", "one draw, or without replacement"},
    {"aten::_chunk_cat", &chunk_cat, "a table of pointers, sizes and begins",
     "TensorShape.cu: _chunk_cat_out_cuda_contiguous, pack_vecs", "always"},
    {"aten::index_reduce", &index_reduce, "the counts, ones, and which counts are zero",
     "Indexing.cu: index_reduce_func_cuda_impl", "means"},
    {"aten::scatter_reduce.two", &scatter_reduce, "ones, the counts, and which are zero",
     "TensorAdvancedIndexing.cpp: scatter_reduce_two", "means"},
    {"aten::masked_scatter_", &masked_scatter, "a running sum of the mask, and CUB's scan",
     "IndexKernel.cu: launch_masked_scatter_kernel", "always"},
    {"aten::mean.dim", &reduction<4>, "partial sums in float, and a counter per output", kReduce,
     kReduceWhen},
    {"aten::linalg_vector_norm", &reduction<4>, "partial sums in float, and a counter per output",
     kReduce, kReduceWhen},
    {"aten::var.correction", &reduction<16>, "partial moments, and a counter per output", kReduce,
     kReduceWhen},
    {"aten::std.correction", &reduction<16>, "partial moments, and a counter per output", kReduce,
     kReduceWhen},
    {"aten::var_mean.correction", &reduction<16>, "partial moments, and a counter per output",
     kReduce, kReduceWhen},
    {"aten::max.dim", &reduction<16>, "partial pairs of value and index", kReduce, kReduceWhen},
    {"aten::min.dim", &reduction<16>, "partial pairs of value and index", kReduce, kReduceWhen},
    {"aten::argmax", &reduction<16>, "partial pairs of value and index", kReduce, kReduceWhen},
    {"aten::argmin", &reduction<16>, "partial pairs of value and index", kReduce, kReduceWhen},
    {"aten::amax", &reduction<0>, "partial values", kReduce, kReduceWhen},
    {"aten::amin", &reduction<0>, "partial values", kReduce, kReduceWhen},
    {"aten::convolution", &nothing,
     "copies of operands in another memory format; in a workspace NHWC copies of images, filters "
     "and result, in 16 bits with channels by eights",
     kConvolution,
     "matrix units; NHWC copies: NCHW, not 1 x 1, in TF32 from 134 million operations on; padding: "
     "not 1 x 1, 3 channels also not up to 4 x 4 in NCHW and not below 64 filters in NHWC; lists "
     "of an H200 and an H100 under torch 2.11"},
    {"aten::convolution_backward", &nothing,
     "copies of operands in another memory format; in a workspace for each gradient NHWC copies, "
     "or Winograd's 36 numbers for each tile of 4 x 4 and each filter; the buffer of the bias's "
     "sum; not partial sums of filters",
     kConvolution,
     "copies as above; Winograd's: gradients of NCHW 3 x 3 filters without strides in float32, in "
     "TF32 below 1.07 billion operations and from 32 channels on; transposed ones in 16 bits: all "
     "operands for the input's gradient"},
    {"aten::_cudnn_rnn", &nothing,
     "a workspace: a list of states for each gate and layer, and some states, or 8 MiB for each "
     "layer and 26.25 lists; in training a list for each gate, cell and inner layer, kept",
     "cudnn/RNN.cpp: _cudnn_rnn, use_rnn_persist_small_h; csrc/aten/cuda_rnn.cpp",
     "sizes: one LSTM of an H200; 8 MiB: states of up to 128 numbers, three LSTMs of an H100"},
    {"aten::_cudnn_rnn_backward", &nothing, "the workspace, twice; the gradients of all weights",
     "cudnn/RNN.cpp: _cudnn_rnn_backward; csrc/aten/cuda_rnn.cpp", "as the forward pass"},
    {"aten::_fused_rms_norm", &nothing, "a copy of an input that is not contiguous",
     "layer_norm_kernel.cu: _fused_rms_norm_cuda; csrc/aten/rms_norm.cpp", "always"},
    {"aten::_fused_rms_norm_backward", &nothing,
     "copies of operands that are not contiguous; a partial sum of the weight's gradient for each "
     "32 rows",
     "layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel; csrc/aten/rms_norm.cpp",
     "partial sums: more than 65,536 rows, narrower than 16 elements for each multiprocessor"},
    {"aten::_foreach_norm.Scalar", &chunks<true>,
     "a partial norm for each chunk of the largest tensor",
     "ForeachReduceOp.cu: foreach_tensor_norm_cuda", "always, for each tensor"},
    {"aten::_foreach_max", &chunks<false>, "a partial maximum for each chunk of the largest tensor",
     "ForeachReduceOp.cu: foreach_tensor_max_cuda", "always, for each tensor"},
    {"aten::embedding_dense_backward", &embedding_backward,
     "four lists of segments, and a row in float for each part of a segment",
     "EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel",
     "more than 3,072 indices; the buffer of the sort: lists of an H200 under torch 2.11"},
    {"aten::_embedding_bag_dense_backward", &embedding_bag_backward, "the same",
     "EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel", "sums and means"},
    {"aten::_embedding_bag_backward", &embedding_bag_backward, "the same",
     "EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel", "sums and means"},
    {"aten::_index_put_impl_", &index_put,
     "linear indices, sorted, their order, the sort's buffer; a copy of values that are not "
     "contiguous",
     "Indexing.cu: index_put_with_sort_kernel", "accumulate, as the gradient of an index has it"},
};

using Table = std::unordered_map<std::string_view, const TemporariesOf*>;
Table made_table(c10::ArrayRef<TemporariesOf> rows) {
  Table made;
  for (const TemporariesOf& row : rows) made.emplace(row.op, &row);
  return made;
}
void allocate(const Table& table, std::string_view op, const Call& call) {
  const auto row = table.find(op);
  if (row != table.end()) row->second->allocate(call);
}

thread_local CudaTemporaries* t_call = nullptr;

}  // namespace

void begin_cuda_temporaries() {
  g_as_cuda.store(true);
  set_profiling_as_cuda(true);
}

void end_cuda_temporaries() noexcept {
  g_as_cuda.store(false);
  set_profiling_as_cuda(false);
  clear_cublas_workspaces();
}

void allocated_together(std::initializer_list<double> bytes, c10::DeviceIndex device) {
  std::vector<c10::DataPtr> held;
  for (const double each : bytes) {
    held.push_back(allocate_on_device(static_cast<std::size_t>(each), device));
  }
  while (!held.empty()) held.pop_back();  // the last first
}

CudaTemporaries::CudaTemporaries(std::string_view op, TensorPointers operands,
                                 CallArguments arguments, c10::DeviceIndex device)
    : op_(op),
      operands_(operands),
      arguments_(std::move(arguments)),
      device_(device),
      outer_(std::exchange(t_call, this)) {
  static const auto* const kTable = new Table(made_table(rows_before_results()));
  try {
    allocate(*kTable, op_, {operands_, arguments_, device_});
  } catch (...) {
    t_call = outer_;
    throw;
  }
}

CudaTemporaries::~CudaTemporaries() {
  t_call = outer_;
  while (!held_.empty()) held_.pop_back();  // the last first
}

void CudaTemporaries::after_results() {
  static const auto* const kTable = new Table(made_table(kRows));
  count_kernels(op_, operands_, arguments_);
  allocate(*kTable, op_, {operands_, arguments_, device_});
}

void CudaTemporaries::hold(double bytes) {
  if (t_call == nullptr || bytes == 0) return;
  t_call->held_.push_back(allocate_on_device(static_cast<std::size_t>(bytes), t_call->device_));
}

void take_sum(const at::TensorBase& input, const CallArguments& arguments) {
  reduction<4>({{&input}, arguments, input.device().index()});
}

void nonzero_temporaries(double dims, double found, c10::DeviceIndex device) {
  const auto count = allocate_on_device(4, device);
  allocated_together({1}, device);
  CudaTemporaries::hold(kIndex * dims * found);
  allocated_together({kSmallScan}, device);
}

std::vector<TemporariesRow> cuda_temporaries() {
  std::vector<TemporariesRow> rows;
  for (const auto of : {rows_before_results(), c10::ArrayRef<TemporariesOf>(kRows)}) {
    for (const auto& row : of) rows.push_back({row.op, row.what, row.source, row.condition});
  }
  return rows;
}

}  // namespace torch_npusim
