// SPDX-License-Identifier: BSD-3-Clause
// Tensors that CUDA's attention kernels save, and their temporaries. Sources, of torch 2.13:
//   flash forward, backward   flash_api: mha_fwd, mha_bwd
//   efficient                 attention.cu: _efficient_attention_forward;
//                             attention_backward.cu: _efficient_attention_backward
//   cuDNN's                   MHA.cpp: run_cudnn_SDP_fprop
// cuDNN's workspaces are not public. Lists of an H200 (torch 2.11) have 256 bytes in the forward
// pass; in the backward pass 256 more than the accumulator, the sums of rows and expanded groups.
#include "csrc/aten/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <cmath>
#include <memory>

#include "csrc/aten/cuda_attention_choice.h"
#include "csrc/aten/cuda_rnn.h"
#include "csrc/launch/launch.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

constexpr double kCudnn = 256;  // bytes

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

bool is_half(const Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

struct Shapes {
  int64_t batch, heads, queries, width, key_heads, keys;
  Shapes(const Tensor& query, const Tensor& key)
      : batch(query.size(0)),
        heads(query.size(1)),
        queries(query.size(2)),
        width(query.size(3)),
        key_heads(key.size(1)),
        keys(key.size(2)) {}
};

// (batch, heads, time, width) in memory as (batch, time, heads, width).
Tensor by_time(int64_t batch, int64_t heads, int64_t time, int64_t width, at::ScalarType dtype,
               c10::DeviceIndex device) {
  return device_empty({batch, time, heads, width}, dtype, device).transpose(1, 2);
}

// The tensor that torch.empty_like() makes of one with heads and time exchanged.
Tensor like(const Tensor& tensor, c10::DeviceIndex device) {
  const Tensor other = tensor.transpose(1, 2);
  if (!other.is_non_overlapping_and_dense()) {
    return by_time(tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3),
                   tensor.scalar_type(), device);
  }
  return device_empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);
}

double float_bytes(const Sizes& sizes) {
  double bytes = 4;
  for (const int64_t size : sizes) bytes *= static_cast<double>(size);
  return bytes;
}

double bytes_of(const Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
}

// A copy that the backward kernels make of what does not lie by time.
double copied(const Tensor& tensor) {
  return tensor.transpose(1, 2).is_contiguous() ? 0 : bytes_of(tensor);
}

template <class Body>
auto command(const char* op, std::initializer_list<const at::TensorBase*> operands,
             const Tensor& query, const Tensor& key, const Tensor& value, double key_products,
             double value_products, bool causal, const Body& body) {
  const bool backward = key_products > 1;
  const auto work = backward ? npusim::Work::attention_backward : npusim::Work::attention;
  npusim::Cost cost = attention_cost(work, TensorPointers(operands.begin(), operands.size()), query,
                                     key, value, key_products, value_products, causal);
  const double wider = static_cast<double>(value.size(-1)) / static_cast<double>(query.size(-1));
  cost.bytes +=
      backward ? bytes_of(query) + bytes_of(key) + bytes_of(value) : wider * bytes_of(query);
  const c10::DeviceIndex device = query.device().index();
  return launch({op, npusim::CommandKind::kernel, cost}, device, [&] { return body(device); });
}

Flash flash(const Tensor& query, const Tensor& key, const Tensor& value, double /*dropout*/,
            bool causal, bool /*return_debug_mask*/, std::optional<double> /*scale*/) {
  return command("aten::_scaled_dot_product_flash_attention", {&query, &key, &value}, query, key,
                 value, 1, 1, causal, [&](c10::DeviceIndex device) -> Flash {
                   const Shapes n(query, key);
                   const Tensor out = like(query, device);
                   const Tensor logsumexp =
                       device_empty({n.batch, n.heads, n.queries}, at::kFloat, device);
                   return {out,
                           logsumexp,
                           Tensor(),
                           Tensor(),
                           n.queries,
                           n.keys,
                           device_empty({2}, at::kUInt64, device),
                           device_empty({}, at::kUInt64, device),
                           device_empty({0}, query.scalar_type(), device)};
                 });
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
    const Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double /*dropout*/,
    bool causal, const Tensor& /*seed*/, const Tensor& /*offset*/,
    std::optional<double> /*scale*/) {
  if (!grad_out.defined()) return {};
  using Grads = std::tuple<Tensor, Tensor, Tensor>;
  return command(
      "aten::_scaled_dot_product_flash_attention_backward",
      {&grad_out, &query, &key, &value, &out, &logsumexp}, query, key, value, 3, 2, causal,
      [&](c10::DeviceIndex device) -> Grads {
        const Shapes n(query, key);
        const auto held = [&](double bytes) {
          return allocate_on_device(static_cast<std::size_t>(bytes), device);
        };
        const auto grad_copy = held(copied(grad_out));
        const auto out_copy = held(copied(out));
        Grads grads{like(query, device), like(key, device), like(value, device)};
        const int64_t rows = rounded_up(n.queries, 128);
        const int64_t width = rounded_up(n.width, n.width <= 128 ? 32 : 64);
        const at::Context& context = at::globalContext();
        int64_t splits = 1;
        if (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly()) {
          const int64_t blocks = npusim::device_spec(device).multiprocessor_count;
          splits = (blocks + n.batch * n.heads - 1) / (n.batch * n.heads);
        }
        const bool grouped = n.key_heads != n.heads;
        const double expanded = !grouped ? 0
                                         : bytes_of(key) * static_cast<double>(n.heads) /
                                               static_cast<double>(n.key_heads);
        allocated_together(
            {float_bytes({n.batch, n.heads, rows}),
             float_bytes({splits, n.batch, rows, n.heads, width}), expanded, expanded},
            device);
        return grads;
      });
}

// One library per dispatch key.
std::vector<std::unique_ptr<torch::Library>>& registrations() {
  static auto* made = new std::vector<std::unique_ptr<torch::Library>>;
  return *made;
}

// flex_attention: a template of Triton on CUDA, which has no accumulator in float.
std::tuple<Tensor, Tensor> flex(const Tensor& query, const Tensor& key, const Tensor& value) {
  TORCH_CHECK(!registrations().empty(),
              "npusim::flex_attention: code that was compiled in a dry run computes nothing: "
              "compile it again, after torch.compiler.reset()");
  using Both = std::tuple<Tensor, Tensor>;
  return command("npusim::flex_attention", {&query, &key, &value}, query, key, value, 1, 1, false,
                 [&](c10::DeviceIndex device) -> Both {
                   const Shapes n(query, key);
                   return {value.size(3) == n.width
                               ? like(query, device)
                               : by_time(n.batch, n.heads, n.queries, value.size(3),
                                         query.scalar_type(), device),
                           device_empty({n.batch, n.heads, n.queries}, at::kFloat, device)};
                 });
}

std::tuple<Tensor, Tensor, Tensor> flex_backward(const Tensor& grad_out, const Tensor& query,
                                                 const Tensor& key, const Tensor& value,
                                                 const Tensor& out, const Tensor& logsumexp) {
  using Grads = std::tuple<Tensor, Tensor, Tensor>;
  return command(
      "npusim::flex_attention_backward", {&grad_out, &query, &key, &value, &out, &logsumexp}, query,
      key, value, 3, 2, false, [&](c10::DeviceIndex device) -> Grads {
        const Shapes n(query, key);
        const Tensor delta = device_empty({n.batch, n.heads, n.queries}, at::kFloat, device);
        return {like(query, device), like(key, device), like(value, device)};
      });
}

Tensor padded(const Tensor& tensor) {
  const int64_t missing = rounded_up(tensor.size(-1), 8) - tensor.size(-1);
  return missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing});
}

// torch's composite has CUDA's name for flash attention on CUDA only.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const MaybeTensor& mask, double dropout, bool causal, std::optional<double> scale,
                 bool gqa) {
  const bool plain = query.is_privateuseone() && !query.is_nested() && query.dim() == 4 &&
                     key.dim() == 4 && value.dim() == 4;
  const auto flash_backend = static_cast<int64_t>(at::SDPBackend::flash_attention);
  const bool masked = mask.has_value() && mask->defined();
  const sdp::sdp_params params{query,   key,    value, masked ? mask : std::nullopt,
                               dropout, causal, gqa};
  if (!plain || cuda_sdp_backend(params) != flash_backend) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale,
                                                    gqa);
  }
  const int64_t width = query.size(-1);
  const double used = scale.value_or(1 / std::sqrt(static_cast<double>(width)));
  const Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention(
      padded(query), padded(key), padded(value), dropout, causal, false, used));
  return out.size(-1) == width ? out : out.slice(-1, 0, width);
}

torch::Library& new_library(c10::DispatchKey key) {
  registrations().push_back(std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", std::optional<c10::DispatchKey>(key), __FILE__, __LINE__));
  return *registrations().back();
}

}  // namespace

// Output, seed and offset come in the order of an H200's lists.
Flash dry_cudnn_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          bool logsumexp_too, bool causal) {
  return command("aten::_scaled_dot_product_cudnn_attention", {&query, &key, &value}, query, key,
                 value, 1, 1, causal, [&](c10::DeviceIndex device) -> Flash {
                   const Shapes n(query, key);
                   const Tensor seed = device_empty({}, at::kLong, device);
                   const Tensor offset = device_empty({}, at::kLong, device);
                   const Tensor out = like(query, device);
                   Tensor logsumexp;
                   if (logsumexp_too) {
                     logsumexp = device_empty({n.batch, n.heads, n.queries, 1}, at::kFloat, device);
                   }
                   allocated_together({kCudnn}, device);
                   return {out,    logsumexp, Tensor(), Tensor(), n.queries,
                           n.keys, seed,      offset,   Tensor()};
                 });
}

std::tuple<Tensor, Tensor, Tensor> dry_cudnn_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, bool causal) {
  using Grads = std::tuple<Tensor, Tensor, Tensor>;
  return command("aten::_scaled_dot_product_cudnn_attention_backward",
                 {&grad_out, &query, &key, &value, &out, &logsumexp}, query, key, value, 3, 2,
                 causal, [&](c10::DeviceIndex device) -> Grads {
                   const Shapes n(query, key);
                   Grads grads{like(query, device), like(key, device), like(value, device)};
                   const double copy = grad_out.strides() == out.strides() ? 0 : bytes_of(grad_out);
                   const double groups =
                       static_cast<double>(n.heads) / static_cast<double>(n.key_heads);
                   const double expanded = groups == 1 ? 0 : 2 * groups * bytes_of(key);
                   const double sums = float_bytes({n.batch, n.heads, n.queries, n.width + 1});
                   allocated_together({copy, sums + expanded + kCudnn}, device);
                   return grads;
                 });
}

Efficient dry_efficient_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                  bool logsumexp_too, bool causal) {
  return command("aten::_scaled_dot_product_efficient_attention", {&query, &key, &value}, query,
                 key, value, 1, 1, causal, [&](c10::DeviceIndex device) -> Efficient {
                   const Shapes n(query, key);
                   const Tensor out = by_time(n.batch, n.heads, n.queries, value.size(3),
                                              query.scalar_type(), device);
                   const int64_t rows = logsumexp_too ? rounded_up(n.queries, 32) : 0;
                   const auto number = [] { return at::empty({}, at::dtype(at::kLong)); };
                   return {out, device_empty({n.batch, n.heads, rows}, at::kFloat, device),
                           number(), number()};
                 });
}

Efficient dry_efficient_attention_backward(const Tensor& grad_out, const Tensor& query,
                                           const Tensor& key, const Tensor& value,
                                           const Tensor& bias, const Tensor& out,
                                           const Tensor& logsumexp, bool bias_too, bool causal) {
  if (!grad_out.defined()) return {};
  return command(
      "aten::_scaled_dot_product_efficient_attention_backward",
      {&grad_out, &query, &key, &value, &out, &logsumexp}, query, key, value, 3, 2, causal,
      [&](c10::DeviceIndex device) -> Efficient {
        const Shapes n(query, key);
        const at::ScalarType dtype = query.scalar_type();
        const auto grad_copy =
            allocate_on_device(static_cast<std::size_t>(copied(grad_out)), device);
        const Tensor grad_query = by_time(n.batch, n.heads, n.queries, n.width, dtype, device);
        const Tensor grad_key = by_time(n.batch, n.key_heads, n.keys, n.width, dtype, device);
        const Tensor grad_value =
            by_time(n.batch, n.key_heads, n.keys, value.size(3), dtype, device);
        Tensor grad_bias;
        if (bias_too && bias.defined()) {
          Sizes sizes = bias.sizes().vec();
          const int64_t last = sizes.back();
          sizes.back() = rounded_up(last, 16);
          grad_bias = device_empty(sizes, bias.scalar_type(), device).slice(-1, 0, last);
        }
        const double delta = float_bytes({n.batch, n.heads, n.queries});
        const auto held = [&](double bytes) {
          return allocate_on_device(static_cast<std::size_t>(bytes), device);
        };
        // The products of the gradient and the result, summed, and copied into another order.
        c10::DataPtr products, sums;
        if (!is_half(query)) products = held(bytes_of(out)), sums = held(delta);
        const auto deltas = held(delta);
        products.clear();
        sums.clear();
        const double blocks = std::ceil(static_cast<double>(n.queries) / 64) *
                              std::ceil(static_cast<double>(n.width) / 64);
        const double workspace =
            static_cast<double>(n.batch * n.heads) * blocks * (16 + 4 * 64 * 64);
        const auto summed = held(workspace);
        return {grad_query, grad_key, grad_value, grad_bias};
      });
}

int64_t cuda_sdp_backend(const sdp::sdp_params& params) {
  if (sdp::has_for_nested_inputs(params)) return static_cast<int64_t>(at::SDPBackend::math);
  const npusim::DeviceSpec& spec = npusim::device_spec(params.query.device().index());
  return static_cast<int64_t>(
      choose_as_cuda(params, 10 * spec.capability_major + spec.capability_minor));
}

TORCH_LIBRARY(npusim, m) {
  m.def("flex_attention(Tensor query, Tensor key, Tensor value) -> (Tensor, Tensor)");
  m.def(
      "flex_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor "
      "out, Tensor logsumexp) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(npusim, PrivateUse1, m) {
  m.impl("flex_attention", &flex);
  m.impl("flex_attention_backward", &flex_backward);
}

void begin_cuda_attention() {
  torch::Library& kernels = new_library(c10::DispatchKey::PrivateUse1);
  kernels.impl("_scaled_dot_product_flash_attention", &flash);
  kernels.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  kernels.impl("scaled_dot_product_attention", &attention);
  register_cuda_rnn(kernels);
  torch::Library& recorded = new_library(c10::DispatchKey::AutogradPrivateUse1);
  recorded.impl("scaled_dot_product_attention", &attention);
}

void end_cuda_attention() { registrations().clear(); }

}  // namespace torch_npusim
