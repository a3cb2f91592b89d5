// SPDX-License-Identifier: BSD-3-Clause
// The table of CUDA's temporaries. Sizes are those of torch 2.13; functions named in `source` are
// where they are decided.
#include "csrc/routes/cuda_temporaries.h"

#include <ATen/OpMathType.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/routes/cuda_kernels.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/profiler.h"

namespace torch_npusim {

namespace {

struct Call {
  TensorPointers operands;
  const CallArguments& arguments;
  c10::DeviceIndex device;
  double numel(std::size_t operand) const {
    return static_cast<double>(operands[operand]->numel());
  }
  double bytes(std::size_t operand) const {
    return numel(operand) * static_cast<double>(operands[operand]->itemsize());
  }
};

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

int64_t last_power_of_two(int64_t n) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Dimension {
  int64_t size, stride;
};

// Ascending strides; neighbours that form one range become one.
std::vector<Dimension> merged(std::vector<Dimension> dims) {
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::vector<Dimension> made;
  for (const Dimension& dim : dims) {
    if (!made.empty() && made.back().size * made.back().stride == dim.stride) {
      made.back().size *= dim.size;
    } else {
      made.push_back(dim);
    }
  }
  return made;
}

int threads_per_multiprocessor(const npusim::DeviceSpec& spec) {
  const int capability = spec.capability_major * 10 + spec.capability_minor;
  if (capability == 75) return 1024;
  return capability == 86 || capability == 89 || spec.capability_major == 12 ? 1536 : 2048;
}

// How a reduction is laid out over threads and blocks; only what decides the size of its buffer.
struct Layout {
  int64_t outputs, inputs;  // inputs per output
  int64_t vector = 1;       // outputs per thread
  int64_t step_input = 1, step_output = 1;
  int64_t width = 1, height = 1;
  bool across_width = false, across_height = false;
  int64_t blocks = 1;  // that share an output
  int64_t per_thread() const { return divided_up(inputs, step_input); }
  int64_t grid() const { return divided_up(outputs / vector, step_output); }

  void set_block(int64_t dim0, int64_t dim1) {
    const int64_t most = 512 / vector;
    const int64_t wide = dim0 < most ? last_power_of_two(dim0) : most;
    const int64_t high = dim1 < most ? last_power_of_two(dim1) : most;
    width = std::min<int64_t>(wide, 32);
    height = std::min(high, most / width);
    width = std::min(wide, most / height);
  }
};

constexpr int64_t kFewValues = 16;
constexpr int64_t kManyValues = 256;

Layout layout_of(const at::TensorBase& input, const CallArguments& reduced,
                 const npusim::DeviceSpec& spec) {
  std::vector<Dimension> over, kept;
  const int64_t rank = input.dim();
  for (int64_t d = 0; d < rank; ++d) {
    if (input.size(d) == 1) continue;
    const auto is_d = [&](int64_t dim) { return (dim + rank) % rank == d; };
    const bool goes =
        reduced.dims.empty() || std::any_of(reduced.dims.begin(), reduced.dims.end(), is_d);
    (goes ? over : kept).push_back({input.size(d), input.stride(d)});
  }
  over = merged(std::move(over));
  kept = merged(std::move(kept));
  Layout layout{1, 1};
  for (const Dimension& dim : over) layout.inputs *= dim.size;
  for (const Dimension& dim : kept) layout.outputs *= dim.size;
  const bool inner = kept.empty() || (!over.empty() && over[0].stride < kept[0].stride);
  int64_t dim0 = inner ? layout.inputs : layout.outputs;
  const int64_t dim1 = inner ? layout.outputs : layout.inputs;
  const int64_t fastest = inner ? (over.empty() ? 1 : over[0].stride) : kept[0].stride;
  if (fastest == 1 && inner && dim0 > 128 && kept.size() + over.size() == 1) {
    dim0 /= 4;
  } else if (fastest == 1 && !inner) {
    const auto fits = [&](int64_t by) {
      const auto even = [&](const Dimension& dim) { return dim.stride % by == 0; };
      return kept[0].size % by == 0 && std::all_of(kept.begin() + 1, kept.end(), even) &&
             std::all_of(over.begin(), over.end(), even);
    };
    layout.vector = fits(4) ? 4 : fits(2) ? 2 : 1;
    dim0 /= layout.vector;
  }
  layout.set_block(dim0, dim1);
  layout.across_width = inner;
  (inner ? layout.step_input : layout.step_output) *= layout.width;
  layout.across_height = layout.per_thread() >= std::min<int64_t>(layout.height * 16, kManyValues);
  (layout.across_height ? layout.step_input : layout.step_output) *= layout.height;
  const int64_t threads = layout.width * layout.height;
  const int64_t room = spec.multiprocessor_count * (threads_per_multiprocessor(spec) / threads);
  if (layout.across_height && layout.per_thread() >= kManyValues && layout.grid() <= room) {
    const int64_t few =
        std::min(divided_up(room, layout.grid()), divided_up(layout.per_thread(), kFewValues));
    layout.blocks = std::max(few, divided_up(layout.per_thread(), kManyValues));
  }
  return layout;
}

template <int bytes_per_value>  // 0: those of the input
void reduction(const Call& call) {
  const at::TensorBase& input = *call.operands[0];
  if (input.numel() == 0) return;
  const Layout layout = layout_of(input, call.arguments, npusim::device_spec(call.device));
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

// A list of pointers for each operand.
void pointers(const Call& call) {
  const at::TensorBase& matrix = *call.operands[0];
  const double count = call.numel(0) / static_cast<double>(matrix.size(-1) * matrix.size(-2));
  allocated_together({8 * count, 8 * count}, call.device);
}
// The permutation of the rows.
void permutation(const Call& call) {
  allocated_together({8 * call.numel(0) / static_cast<double>(call.operands[0]->size(-1))},
                     call.device);
}

// --- indices

constexpr double kIndex = 8;       // bytes
constexpr double kOneTile = 2048;  // as many are sorted without a copy

// CUB's radix sort of pairs: both lists once more, histograms of eight passes, a counter, and a
// state of 256 numbers for each tile. H200 lists of 4,096, 8,192 and 16,384 indices have these
// sizes for each length of a tile from 4,096 to 5,461.
double sort_buffer(double count, double key = kIndex) {
  constexpr double kTile = 4608, kCounter = 256, kAlignment = 255;
  if (count <= kOneTile) return 1;
  const double lists = 256 * (std::ceil(kIndex * count / 256) + std::ceil(key * count / 256));
  const double passes = key * 256 * 8;  // one for each byte of a key
  return lists + passes + kCounter + 1024 * std::ceil(count / kTile) + kAlignment;
}

constexpr double kScan = 1279;  // CUB's scan of up to 16,384 numbers; longer ones need little more

// The same of numbers of four bytes or fewer.
constexpr double kSmallScan = 1023;

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

// The number of elements, and CUB's count of them.
void count_of_nonzero(const Call& call) { allocated_together({4, 1}, call.device); }

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

constexpr double kFewIndices = 3072;

// Operands: the gradient, the indices; the first number is that of the weight's rows.
void embedding_backward(const Call& call) {
  const double count = call.numel(1);
  const double index = static_cast<double>(call.operands[1]->itemsize()) * count;
  if (count <= kFewIndices) return;
  const auto sorted = allocate_on_device(static_cast<std::size_t>(index), call.device);
  const auto order = allocate_on_device(static_cast<std::size_t>(index), call.device);
  allocated_together({index, sort_buffer(count)}, call.device);
  const auto held = [&](double bytes) {
    return allocate_on_device(static_cast<std::size_t>(bytes), call.device);
  };
  const auto& numbers = call.arguments.dims;
  const double rows = numbers.empty() ? count : static_cast<double>(numbers[0]);
  const double segments = std::min(count, rows);
  const double parts = std::floor(count / 10) + segments;  // at most; ten rows make a part
  const double per_value = std::max<double>(4, static_cast<double>(call.operands[0]->itemsize()));
  const auto offsets = held(index), number = held(8);
  allocated_together({index, kScan}, call.device);
  const double in_segments = index / count * segments;
  const auto per_segment = held(in_segments), first_of_segment = held(in_segments);
  allocated_together({kScan}, call.device);
  allocated_together({8, index / count * parts, call.numel(0) / count * per_value * parts},
                     call.device);
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
    most = std::max(most, divided_up(tensor->numel(), kChunk));
  }
  const at::ScalarType dtype = call.operands[0]->scalar_type();
  const auto item = static_cast<int64_t>(c10::elementSize(wide ? at::toOpMathType(dtype) : dtype));
  const auto tensors = static_cast<int64_t>(call.operands.size());
  allocated_together({static_cast<double>(tensors * most * item)}, call.device);
}

void nothing(const Call& /*call*/) {}  // the kernel of the dry run allocates them

struct Row {
  const char* op;
  void (*allocate)(const Call& call);
  const char* what;
  const char* source;
  const char* condition;
};

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

constexpr Row kRows[] = {
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
    {"aten::linalg_solve_triangular", &pointers, "two lists of pointers to matrices", kPointers,
     "always"},
    {"aten::triangular_solve", &pointers, "two lists of pointers to matrices", kPointers, "always"},
    {"aten::linalg_lu_solve", &pointers, "two lists of pointers to matrices", kPointers, "always"},
    {"aten::lu_unpack", &permutation, "the permutation of the rows",
     "LinearAlgebra.cpp: lu_unpack_out", "always"},
    {"aten::cumsum", &scan, "CUB's scan", kCub, "one dimension"},
    {"aten::cumprod", &scan, "CUB's scan", kCub, "one dimension"},
    {"aten::sort.stable", &sort,
     "numbers of a row of up to 4,096; of one longer row CUB's radix sort",
     "Sort.cpp: sort_cuda_kernel; Sort.cu: should_use_small_sort", "always"},
    {"aten::nonzero", &count_of_nonzero, "the count, and CUB's sum",
     "Nonzero.cu: nonzero_cuda_out_impl", "always"},
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
     "in a workspace: NHWC copies of images, filters and result; in 16 bits their channels are "
     "padded to a multiple of 8",
     kConvolution,
     "matrix units; copies: NCHW, not 1 x 1; padding: not 1 x 1, 3 channels also not up to 4 x 4 "
     "in NCHW and not below 64 filters in NHWC; lists of an H200 under torch 2.11, four of "
     "padding"},
    {"aten::convolution_backward", &nothing,
     "in a workspace for each gradient: NHWC copies of images, filters and the result's gradient; "
     "in 16 bits their channels are padded to a multiple of 8; not partial sums of filters",
     kConvolution,
     "matrix units; copies: NCHW; padding: not 1 x 1; lists of an H200 under torch 2.11, six of "
     "padding"},
    {"aten::_cudnn_rnn", &nothing,
     "a workspace: a list of states for each gate and layer, and some states; in training a list "
     "for each gate, cell and inner layer, kept",
     "cudnn/RNN.cpp: _cudnn_rnn; csrc/aten/cuda_rnn.cpp", "sizes: one LSTM of an H200"},
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
     "sorted indices and their order, the sort's buffer, four lists of segments, and a row in "
     "float for each part of a segment",
     "Embedding.cu: embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu: "
     "embedding_backward_cuda_kernel",
     "more than 3,072 indices; the buffer of the sort: lists of an H200 under torch 2.11"},
    {"aten::_index_put_impl_", &index_put,
     "linear indices, sorted, their order, the sort's buffer; a copy of values that are not "
     "contiguous",
     "Indexing.cu: index_put_with_sort_kernel", "accumulate, as the gradient of an index has it"},
};

const std::unordered_map<std::string_view, const Row*>& table() {
  static const auto* const kTable = [] {
    auto* made = new std::unordered_map<std::string_view, const Row*>;
    for (const Row& row : kRows) made->emplace(row.op, &row);
    return made;
  }();
  return *kTable;
}

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

void allocate_temporaries(std::string_view op, TensorPointers operands,
                          const CallArguments& arguments, c10::DeviceIndex device) {
  count_kernels(op, operands, arguments);
  const auto row = table().find(op);
  if (row != table().end()) row->second->allocate({operands, arguments, device});
}

std::vector<TemporariesRow> cuda_temporaries() {
  std::vector<TemporariesRow> rows;
  for (const Row& row : kRows) rows.push_back({row.op, row.what, row.source, row.condition});
  return rows;
}

}  // namespace torch_npusim
