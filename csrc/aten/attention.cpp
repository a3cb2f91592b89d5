// SPDX-License-Identifier: BSD-3-Clause
// Scaled dot product attention with the bits of the CPU backend.
//
//   scaled_dot_product_attention(q, k, v)     torch's composite, which asks a stub of the device:
//     _fused_sdp_choice_stub -> here          the CPU's own stub decides, from shapes alone
//       flash_attention  -> _scaled_dot_product_flash_attention_for_cpu, here on host views
//       math             -> torch's composite of matmul and softmax (also for every dropout)
//
// The trap: core calls the operator "..._for_cpu" for every device but CUDA and XPU, so a kernel
// must exist under that name here; and the CPU's decision reads metadata only, but would reach for
// the data of functorch's wrapped tensors, which have none: it is shown tensors without memory.
// Their storage has a size all the same, because the decision may take views (torch 2.15).
// The _overrideable pair serves code that calls it by name. The fast paths of
// torch.nn.MultiheadAttention and TransformerEncoderLayer need nothing here: the fallback runs
// them. Cost: two operations per multiply-add of both products; five products backward.
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "csrc/aten/cuda_attention.h"
#include "csrc/aten/cuda_attention_choice.h"
#include "csrc/cuda_rules/judged_capability.h"
#include "csrc/operands/nested_members.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

}  // namespace

// Heads of this width keep the matrix units as busy as their softmax does. Narrower ones wait
// for it: it has as many exponentials, and fewer products. attention() of tools/gpu/host.py fits it
// to heads of 64 and of 128 in bfloat16, the visible halves of recordings of an H100 and an H200.
constexpr double kSoftmaxWidth = 117;

// Two operations per multiply-add of `key_products` products (L, E) x (E, S), of queries with keys
// or of their gradients, and `value_products` products (L, S) x (S, Ev), over all heads.
npusim::Cost attention_cost(npusim::Work work, Operands operands, const Tensor& query,
                            const Tensor& key, const Tensor& value, double key_products,
                            double value_products, bool causal) {
  npusim::Cost cost = elementwise_cost(operands);
  if (query.numel() == 0 || query.dim() < 2 || key.dim() < 2) return cost;
  const double scores = static_cast<double>(query.numel()) / static_cast<double>(query.size(-1)) *
                        static_cast<double>(key.size(-2));
  cost.flops = 2.0 * scores *
               (key_products * static_cast<double>(query.size(-1)) +
                value_products * static_cast<double>(value.size(-1)));
  do_on_matrix_units(cost, work, query);
  const double rows = static_cast<double>(query.size(-2));
  const double matrices =
      static_cast<double>(query.numel()) / (rows * static_cast<double>(query.size(-1)));
  cost.tiles = npusim::tiles_of(matrices, rows, static_cast<double>(key.size(-2)));
  if (causal) cost.done = causal_share(rows, static_cast<double>(key.size(-2)));
  if (npusim::on_matrix_units(cost.precision)) {
    cost.done *= std::max(1.0, kSoftmaxWidth / static_cast<double>(query.size(-1)));
  }
  return cost;
}

namespace {

// A CPU tensor with the metadata of `operand` (sizes, strides, dtype, requires_grad) and no memory.
Tensor shape_of(const Tensor& operand) {
  const c10::TensorImpl& impl = *operand.unsafeGetTensorImpl();
  const bool nested = is_strided_nested(operand);
  const std::size_t bytes =
      nested ? 0 : at::detail::computeStorageNbytes(impl.sizes(), impl.strides(), impl.itemsize());
  auto no_memory = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      c10::DataPtr(nullptr, c10::Device(c10::kCPU)), /*allocator=*/nullptr, /*resizable=*/false);
  Tensor shape;
  if (C10_UNLIKELY(nested)) {
    shape =
        nested_over(operand, c10::Storage(std::move(no_memory)), c10::DispatchKey::NestedTensorCPU);
  } else {
    shape = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(no_memory)),
                                                     c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     impl.dtype());
    shape.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides());
  }
  // The CPU does not take flash attention for a mask that wants a gradient.
  if (operand.requires_grad()) shape.unsafeGetTensorImpl()->set_requires_grad(true);
  return shape;
}

// CUDA's kernel, whose work is the fused kernel's here; math where the CPU's lacks something.
int64_t choose_without_math(const sdp::sdp_params& params) {
  const at::SDPBackend chosen = choose_as_cuda(params, judged_capability());
  const MaybeTensor& mask = params.attn_mask;
  const bool mask_wants_gradient = mask.has_value() && mask->defined() && mask->requires_grad();
  const bool same = params.query.sym_size(-1) == params.value.sym_size(-1) &&
                    params.query.sym_size(1) == params.key.sym_size(1) &&
                    params.query.sym_size(1) == params.value.sym_size(1);
  const bool fused = same && params.dropout == 0 && !mask_wants_gradient;
  return static_cast<int64_t>(fused ? chosen : at::SDPBackend::math);
}

int64_t choose_sdp_backend(const Tensor& query, const Tensor& key, const Tensor& value,
                           const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                           std::optional<double> scale, bool enable_gqa) {
  const bool masked = attn_mask.has_value() && attn_mask->defined();
  const sdp::sdp_params params{query,     key,       value,     masked ? attn_mask : std::nullopt,
                               dropout_p, is_causal, enable_gqa};
  if (as_cuda()) return cuda_sdp_backend(params);
  if (C10_UNLIKELY(!at::globalContext().userEnabledMathSDP())) {
    const bool is_of_cuda = judged_capability() != 0 && !sdp::has_for_nested_inputs(params);
    if (is_of_cuda) return choose_without_math(params);
  }
  return at::native::_fused_sdp_choice_stub(
      c10::kCPU, shape_of(query), shape_of(key), shape_of(value),
      masked ? MaybeTensor(shape_of(*attn_mask)) : std::nullopt, dropout_p, is_causal, scale,
      enable_gqa);
}

std::tuple<Tensor, Tensor> flash(const Tensor& query, const Tensor& key, const Tensor& value,
                                 double dropout_p, bool is_causal, const MaybeTensor& attn_mask,
                                 std::optional<double> scale) {
  const Tensor no_mask;
  const std::array<const at::TensorBase*, 4> operands = {
      &query, &key, &value, attn_mask.has_value() ? &*attn_mask : &no_mask};
  const auto cost =
      attention_cost(npusim::Work::attention, operands, query, key, value, 1, 1, is_causal);
  return on_host_views(
      "aten::_scaled_dot_product_flash_attention_for_cpu", operands, cost, [&](CpuCall& call) {
        auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
            call.view(query, false), call.view(key, false), call.view(value, false), dropout_p,
            is_causal, view_of(call, attn_mask), scale);
        call.finish();
        return std::tuple<Tensor, Tensor>{call.result(output), call.result(logsumexp)};
      });
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_out, const Tensor& query,
                                                  const Tensor& key, const Tensor& value,
                                                  const Tensor& out, const Tensor& logsumexp,
                                                  double dropout_p, bool is_causal,
                                                  const MaybeTensor& attn_mask,
                                                  std::optional<double> scale) {
  // An undefined gradient of the output: nothing flows back.
  if (!grad_out.defined()) return {};
  const std::array<const at::TensorBase*, 6> operands = {&grad_out, &query, &key,
                                                         &value,    &out,   &logsumexp};
  const auto cost = attention_cost(npusim::Work::attention_backward, operands, query, key, value, 3,
                                   2, is_causal);
  return on_host_views(
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward", operands, cost,
      [&](CpuCall& call) {
        auto [grad_query, grad_key, grad_value] =
            at::_scaled_dot_product_flash_attention_for_cpu_backward(
                call.view(grad_out, false), call.view(query, false), call.view(key, false),
                call.view(value, false), call.view(out, false), call.view(logsumexp, false),
                dropout_p, is_causal, view_of(call, attn_mask), scale);
        call.finish();
        return std::tuple<Tensor, Tensor, Tensor>{call.result(grad_query), call.result(grad_key),
                                                  call.result(grad_value)};
      });
}

using Overrideable =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Overrideable overrideable(const Tensor& query, const Tensor& key, const Tensor& value,
                          const MaybeTensor& attn_bias, double dropout_p, bool is_causal,
                          bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      dropout_p == 0.0 && !return_debug_mask,
      "_scaled_dot_product_fused_attention_overrideable on npusim has neither dropout nor a debug "
      "mask; got dropout_p=",
      dropout_p, ", return_debug_mask=", return_debug_mask,
      ". torch.nn.functional.scaled_dot_product_attention supports dropout.");
  auto [output, logsumexp] = flash(query, key, value, dropout_p, is_causal, attn_bias, scale);
  const Tensor unused = at::empty({0}, query.options().dtype(at::kLong));
  return {output,          logsumexp, unused, unused, query.sym_size(2),
          key.sym_size(2), unused,    unused, unused};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> overrideable_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& /*philox_seed*/, const Tensor& /*philox_offset*/, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !grad_input_mask[3],
      "_scaled_dot_product_fused_attention_overrideable_backward on npusim has no gradient of "
      "attn_bias; torch.nn.functional.scaled_dot_product_attention computes it.");
  const MaybeTensor bias = attn_bias.defined() ? MaybeTensor(attn_bias) : std::nullopt;
  auto [grad_query, grad_key, grad_value] = flash_backward(
      grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, bias, scale);
  return {grad_query, grad_key, grad_value, Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose_sdp_backend);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", &flash);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_backward);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &overrideable);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &overrideable_backward);
}

}  // namespace torch_npusim

namespace at::native {

// scaled_dot_product_attention() asks this stub, not the operator. Its answer flash_attention
// makes core call _scaled_dot_product_flash_attention_for_cpu for every device but CUDA and XPU.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_npusim::choose_sdp_backend)

}  // namespace at::native
