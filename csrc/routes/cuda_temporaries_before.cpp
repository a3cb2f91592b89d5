// SPDX-License-Identifier: BSD-3-Clause
// Memory that CUDA's kernels allocate before their results. Blocks of hold() live as long as the
// call.
#include <ATen/ExpandUtils.h>

#include <algorithm>

#include "csrc/routes/cub_buffers.h"
#include "csrc/routes/cuda_temporaries_rows.h"

namespace torch_npusim {

namespace {

using Call = TemporariesCall;

void hold(double bytes) { CudaTemporaries::hold(bytes); }

void hold_copy_with_gaps(const Call& call, std::size_t operand) {
  if (!call.operands[operand]->is_contiguous()) hold(call.bytes(operand));
}

// --- reductions

// Elements that are left over of a reduction over the call's dimensions, which become 1.
double reduced(const Call& call) {
  const at::TensorBase& self = *call.operands[0];
  double left = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const auto is_d = [&](int64_t dim) { return (dim + self.dim()) % self.dim() == d; };
    const auto& dims = call.arguments.dims;
    const bool goes = dims.empty() || std::any_of(dims.begin(), dims.end(), is_d);
    if (!goes) left *= static_cast<double>(self.size(d));
  }
  return left;
}

void logsumexp(const Call& call) {
  if (call.operands[0]->numel() == 0) return;
  const double left = reduced(call);
  const double maxima = left * static_cast<double>(call.operands[0]->itemsize());
  hold(maxima);
  allocated_together({maxima, left}, call.device);
  hold(call.bytes(0));
}

void counted(const Call& call) { hold(call.numel(0)); }

// --- indices

void hold_sorted_indices(const Call& call) {
  const double index = call.bytes(1);
  hold(index);
  hold(index);
  allocated_together({index, sort_buffer(call.numel(1))}, call.device);
}

// Operands: the gradient, the indices.
void sort_for_embedding(const Call& call) {
  hold_copy_with_gaps(call, 0);
  if (call.numel(1) > kFewIndices) hold_sorted_indices(call);
}
void sort_for_bags(const Call& call) {
  hold_copy_with_gaps(call, 0);
  if (sums_bags(call.arguments) && call.numel(1) > 0) hold_sorted_indices(call);
}

// Operands: the tensor, indices. Several that do not lie alike are copied, in the size of all.
void index(const Call& call) {
  c10::DimVector sizes;
  c10::SmallVector<const at::TensorBase*, 4> given;
  for (std::size_t i = 1; i < call.operands.size(); ++i) {
    const at::TensorBase& each = *call.operands[i];
    if (!each.defined() || each.scalar_type() == at::kBool) return;
    sizes = given.empty() ? c10::DimVector(each.sizes())
                          : at::infer_size_dimvector(sizes, each.sizes());
    given.push_back(&each);
  }
  if (given.size() < 2) return;
  const auto strides = [&](const at::TensorBase& each) {
    return at::inferExpandGeometry_dimvector(each.sizes(), each.strides(), sizes).strides;
  };
  const c10::DimVector first = strides(*given[0]);
  const auto alike = [&](const at::TensorBase* each) { return strides(*each) == first; };
  if (std::all_of(given.begin(), given.end(), alike)) return;
  const auto count = static_cast<double>(c10::multiply_integers(sizes));
  for (const at::TensorBase* each : given) {
    const bool whole = each->sizes() == at::IntArrayRef(sizes) && each->is_contiguous();
    if (!whole) hold(kIndex * count);
  }
}

// Values that are sorted, and the sort.
void unique(const Call& call) {
  if (call.arguments.flags.size() > 2 && (call.arguments.flags[1] || call.arguments.flags[2]))
    return;
  const double count = call.numel(0);
  hold(call.bytes(0));
  const double buffer = count <= kOneTile ? 1 : sort_buffer(count) - kIndex * count;
  allocated_together({buffer}, call.device);
}

// --- norms

// The gradient, the input: those with gaps are copied.
template <std::size_t images>
void layer_norm(const Call& call) {
  for (std::size_t i = 0; i < std::min(images, call.operands.size()); ++i) {
    hold_copy_with_gaps(call, i);
  }
}

// --- others

// Axes are rolled one after the other. The first list is that of the shifts.
void roll(const Call& call) {
  for (std::size_t i = 1; i < call.arguments.dims.size(); ++i) hold(call.bytes(0));
}

// Lengths of inputs and of targets, and where targets begin.
void ctc_loss(const Call& call) {
  const double batch =
      call.operands[0]->dim() == 3 ? static_cast<double>(call.operands[0]->size(1)) : 1;
  for (int list = 0; list < 3; ++list) hold(8 * batch);
}
// Operands: the gradient, log probabilities, targets, losses, alphas; beside those the betas.
void ctc_loss_backward(const Call& call) {
  const double batch = call.numel(3);
  for (int list = 0; list < 3; ++list) hold(8 * batch);
  hold(call.bytes(4));
}

constexpr const char* kSorted =
    "a copy of a gradient with gaps; sorted indices, their order, and the sort's buffer";

constexpr TemporariesOf kBefore[] = {
    {"aten::logsumexp", &logsumexp,
     "maxima, their size, a comparison, and the differences from the maxima",
     "ReduceOps.cpp: logsumexp_out_impl", "always"},
    {"aten::count_nonzero.dim_IntList", &counted, "a comparison",
     "TensorAdvancedIndexing.cpp: count_nonzero_cuda", "always"},
    {"aten::embedding_dense_backward", &sort_for_embedding, kSorted,
     "Embedding.cu: embedding_dense_backward_cuda", "the sort: more than 3,072 indices"},
    {"aten::_embedding_bag_dense_backward", &sort_for_bags, kSorted,
     "EmbeddingBag.cu: embedding_bag_backward_cuda_sum_avg", "sums and means"},
    {"aten::_embedding_bag_backward", &sort_for_bags, kSorted,
     "EmbeddingBag.cu: embedding_bag_backward_cuda_sum_avg", "sums and means"},
    {"aten::index.Tensor", &index, "copies of the indices in the size of all",
     "TensorAdvancedIndexing.cpp: AdvancedIndex", "several indices that do not lie alike"},
    {"aten::native_layer_norm", &layer_norm<1>, "a copy of an input with gaps",
     "layer_norm_kernel.cu: layer_norm_cuda", "always"},
    {"aten::native_layer_norm_backward", &layer_norm<2>,
     "copies of a gradient and an input with gaps",
     "layer_norm_kernel.cu: layer_norm_backward_cuda", "always"},
    {"aten::_unique2", &unique, "the sorted values, and the sort's buffer",
     "Unique.cu: unique_cuda_template; the buffer of more than 2,048 values was not seen",
     "neither inverses nor counts"},
    {"aten::roll", &roll, "the tensor once more for each axis but the last",
     "TensorTransformations.h: roll_common", "several axes"},
    {"aten::_ctc_loss", &ctc_loss, "lengths of inputs and targets, and begins of targets",
     "LossCTC.cu: ctc_loss_gpu_template", "always"},
    {"aten::_ctc_loss_backward", &ctc_loss_backward, "the same, and betas as large as the alphas",
     "LossCTC.cu: ctc_loss_backward_gpu_template", "always"},
};

}  // namespace

c10::ArrayRef<TemporariesOf> rows_before_results() { return kBefore; }

}  // namespace torch_npusim
