// SPDX-License-Identifier: BSD-3-Clause
// The operators of efficient, flash and cuDNN attention: the CPU's fused attention under CUDA's
// names, so commands, saved tensors and selective checkpoints are named as on CUDA. Bits are the
// CPU's. The CPU's kernel lacks dropout, masks that want a gradient, values of another width and
// grouped heads: attention.cpp sends these to torch's composite of matmul and softmax. A dry run
// that allocates as CUDA does has the kernels of cuda_attention.cpp.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <limits>

#include "csrc/aten/cuda_attention.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Scale = std::optional<double>;

void check_has_no_dropout(const char* op, double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, op,
                              " on npusim has no dropout; got dropout_p=", dropout,
                              ". torch.nn.functional.scaled_dot_product_attention computes it.");
}

std::tuple<Tensor, Tensor> forward(const char* op, const Tensor& query, const Tensor& key,
                                   const Tensor& value, const MaybeTensor& bias, double dropout,
                                   bool causal, Scale scale) {
  check_has_no_dropout(op, dropout);
  const Tensor no_bias;
  const std::array<const at::TensorBase*, 4> operands = {&query, &key, &value,
                                                         bias.has_value() ? &*bias : &no_bias};
  const auto cost =
      attention_cost(npusim::Work::attention, operands, query, key, value, 1, 1, causal);
  return on_host_views(op, operands, cost, [&](CpuCall& call) {
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        call.view(query, false), call.view(key, false), call.view(value, false), 0, causal,
        view_of(call, bias), scale);
    call.finish();
    return std::tuple<Tensor, Tensor>{call.result(out), call.result(logsumexp)};
  });
}

std::tuple<Tensor, Tensor, Tensor> backward(const char* op, const Tensor& grad_out,
                                            const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& bias,
                                            const Tensor& out, const Tensor& logsumexp,
                                            double dropout, bool causal, Scale scale) {
  check_has_no_dropout(op, dropout);
  const std::array<const at::TensorBase*, 7> operands = {&grad_out, &query, &key,      &value,
                                                         &bias,     &out,   &logsumexp};
  const auto cost =
      attention_cost(npusim::Work::attention_backward, operands, query, key, value, 3, 2, causal);
  return on_host_views(op, operands, cost, [&](CpuCall& call) {
    auto [grad_query, grad_key, grad_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            call.view(grad_out, false), call.view(query, false), call.view(key, false),
            call.view(value, false), call.view(out, false), call.view(logsumexp, false), 0, causal,
            view_of(call, bias), scale);
    call.finish();
    return std::tuple<Tensor, Tensor, Tensor>{call.result(grad_query), call.result(grad_key),
                                              call.result(grad_value)};
  });
}

// Seeds and offsets are of a dropout that there is not.
Tensor no_number() { return at::empty({}, at::dtype(at::kLong)); }

Efficient efficient(const Tensor& query, const Tensor& key, const Tensor& value,
                    const MaybeTensor& bias, bool logsumexp_too, double dropout, bool causal,
                    Scale scale) {
  if (as_cuda()) return dry_efficient_attention(query, key, value, logsumexp_too, causal);
  auto [out, logsumexp] = forward("aten::_scaled_dot_product_efficient_attention", query, key,
                                  value, bias, dropout, causal, scale);
  return {out, logsumexp, no_number(), no_number()};
}

Efficient efficient_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& bias, const Tensor& out,
                             const Tensor& logsumexp, const Tensor& /*seed*/,
                             const Tensor& /*offset*/, double dropout, std::array<bool, 4> wanted,
                             bool causal, Scale scale) {
  if (!grad_out.defined()) return {};
  if (as_cuda()) {
    return dry_efficient_attention_backward(grad_out, query, key, value, bias, out, logsumexp,
                                            wanted[3], causal);
  }
  constexpr char kOp[] = "aten::_scaled_dot_product_efficient_attention_backward";
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted[3] || !bias.defined(), kOp,
                              " on npusim has no gradient of attn_bias; ",
                              "torch.nn.functional.scaled_dot_product_attention computes it.");
  auto [grad_query, grad_key, grad_value] =
      backward(kOp, grad_out, query, key, value, bias, out, logsumexp, dropout, causal, scale);
  return {grad_query, grad_key, grad_value, Tensor()};
}

Flash cudnn(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
            bool logsumexp_too, double dropout, bool causal, bool /*debug_mask*/, Scale scale) {
  if (as_cuda()) return dry_cudnn_attention(query, key, value, logsumexp_too, causal);
  auto [out, logsumexp] = forward("aten::_scaled_dot_product_cudnn_attention", query, key, value,
                                  bias, dropout, causal, scale);
  return {out,         logsumexp,   Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          no_number(), no_number(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& /*seed*/, const Tensor& /*offset*/,
    const Tensor& bias, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout, bool causal, Scale scale) {
  if (!grad_out.defined()) return {};
  if (as_cuda()) {
    return dry_cudnn_attention_backward(grad_out, query, key, value, out, logsumexp, causal);
  }
  return backward("aten::_scaled_dot_product_cudnn_attention_backward", grad_out, query, key, value,
                  bias, out, logsumexp, dropout, causal, scale);
}

// --- _flash_attention_forward and _efficient_attention_forward: of (batch, time, heads, width).
// Versions of torch differ in their last arguments, so calls are read from the stack by name.

using torch::jit::Stack;

class Asked {
 public:
  Asked(const c10::OperatorHandle& op, const Stack& stack)
      : schema_(op.schema()), values_(torch::jit::last(stack, schema_.arguments().size())) {}
  const c10::IValue& operator[](const char* name) const {
    return values_[static_cast<std::size_t>(schema_.argumentIndexWithName(name).value())];
  }
  Tensor heads_first(const char* name) const { return (*this)[name].toTensor().transpose(1, 2); }
  Scale scale() const { return (*this)["scale"].toOptional<double>(); }
  // Refuses what the CPU's kernel lacks: sequences of other lengths, windows, slopes, masks.
  void lack(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const std::optional<int> place = schema_.argumentIndexWithName(name);
      TORCH_CHECK_NOT_IMPLEMENTED(
          !place.has_value() || values_[static_cast<std::size_t>(*place)].isNone(), schema_.name(),
          " on npusim has no ", name,
          ". torch.nn.functional.scaled_dot_product_attention takes a mask.");
    }
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> values_;
};

// The last query sees the last key. The CPU's kernel lets the first query see the first key.
MaybeTensor to_the_last_key(const Tensor& query, const Tensor& key) {
  const int64_t queries = query.size(2), keys = key.size(2);
  const auto least = -std::numeric_limits<double>::infinity();
  return at::full({queries, keys}, least, query.options()).triu_(keys - queries + 1);
}

std::tuple<Tensor, Tensor> asked_forward(const Asked& asked, const char* op, bool causal, bool last,
                                         const MaybeTensor& bias) {
  const Tensor query = asked.heads_first("query"), key = asked.heads_first("key");
  const bool shifted = causal && last && query.size(2) != key.size(2);
  auto [out, logsumexp] = forward(op, query, key, asked.heads_first("value"),
                                  shifted ? to_the_last_key(query, key) : bias,
                                  asked["dropout_p"].toDouble(), causal && !shifted, asked.scale());
  return {out.transpose(1, 2).contiguous(), logsumexp};
}

void flash_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Asked asked(op, *stack);
  asked.lack({"cum_seq_q", "cum_seq_k", "window_size_left", "window_size_right", "seqused_k",
              "alibi_slopes", "block_table"});
  auto [out, logsumexp] = asked_forward(asked, "aten::_flash_attention_forward",
                                        asked["is_causal"].toBool(), true, std::nullopt);
  const auto made = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::zeros(sizes, out.options().dtype(dtype));
  };
  const Tensor state = made({2}, at::kUInt64), unused = made({}, at::kUInt64);
  const Tensor mask = made({0}, out.scalar_type());
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, out, logsumexp, state, unused, mask);
}

void efficient_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Asked asked(op, *stack);
  asked.lack({"cu_seqlens_q", "cu_seqlens_k", "seqlen_k", "window_size"});
  const int64_t queries = asked["query"].toTensor().size(1);
  const int64_t keys = asked["key"].toTensor().size(1);
  constexpr int64_t kFromFirst = 1, kFromLast = 2;  // custom_mask_type
  const int64_t mask = asked["custom_mask_type"].toInt();
  auto [out, logsumexp] = asked_forward(asked, "aten::_efficient_attention_forward",
                                        mask == kFromFirst || mask == kFromLast, mask == kFromLast,
                                        asked["bias"].toOptional<Tensor>());
  if (!asked["compute_log_sumexp"].toBool()) logsumexp = logsumexp.slice(2, 0, 0);
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, out, logsumexp, no_number(), no_number(), queries, keys);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_forward>());
  m.impl("_efficient_attention_forward",
         torch::CppFunction::makeFromBoxedFunction<&efficient_forward>());
  m.impl("_scaled_dot_product_efficient_attention", &efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  m.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  m.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace torch_npusim
