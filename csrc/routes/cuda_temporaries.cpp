// SPDX-License-Identifier: BSD-3-Clause
// The table of CUDA's temporaries. Sizes are those of torch 2.13; functions named in `source` are
// where they are decided.
#include "csrc/routes/cuda_temporaries.h"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/routes/cuda_kernels.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/device_allocator.h"

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

// --- indices

constexpr double kIndex = 8;       // bytes
constexpr double kOneTile = 2048;  // as many are sorted without a copy

// CUB's radix sort of pairs: both lists once more, histograms of eight passes, a counter, and a
// state of 256 numbers for each tile. H200 lists of 4,096, 8,192 and 16,384 indices have these
// sizes for each length of a tile from 4,096 to 5,461.
double sort_buffer(double count) {
  constexpr double kTile = 4608, kPasses = 8 * 256 * 8, kCounter = 256, kAlignment = 255;
  if (count <= kOneTile) return 1;
  const double lists = 2 * 256 * std::ceil(kIndex * count / 256);
  return lists + kPasses + kCounter + 1024 * std::ceil(count / kTile) + kAlignment;
}

constexpr double kScan = 1279;  // CUB's scan of up to 16,384 numbers; longer ones need little more

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
  const auto linear = allocate_on_device(static_cast<std::size_t>(index), call.device);
  allocated_together({index, index}, call.device);
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
    {"aten::sum.dim_IntList", &reduction<4>, "partial sums in float, and a counter per output",
     kReduce, kReduceWhen},
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

void begin_cuda_temporaries() { g_as_cuda.store(true); }

void end_cuda_temporaries() noexcept {
  g_as_cuda.store(false);
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
  note_kernels(op, operands, arguments);
  const auto row = table().find(op);
  if (row != table().end()) row->second->allocate({operands, arguments, device});
}

std::vector<TemporariesRow> cuda_temporaries() {
  std::vector<TemporariesRow> rows;
  for (const Row& row : kRows) rows.push_back({row.op, row.what, row.source, row.condition});
  return rows;
}

}  // namespace torch_npusim
