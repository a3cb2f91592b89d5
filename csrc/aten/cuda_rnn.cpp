// SPDX-License-Identifier: BSD-3-Clause
// Sizes and their order are those of torch's cudnn/RNN.cpp: _cudnn_rnn, _cudnn_rnn_backward_input,
// _cudnn_rnn_backward_weight. The buffers of cuDNN itself are not public. One LSTM of an H200
// (torch 2.11: two layers, 128 x 64 x 512, float32) has
//   reserve     11 lists of a state for each row, 256 bytes:
//               four gates and the cell of each layer, and the output of the first
//   workspace   8 such lists, 20 states, 768 bytes: the gates of each layer
// States of up to 128 numbers take a persistent kernel (use_rnn_persist_small_h, both ways). Three
// LSTMs of an H100 (two layers, 64 x 4 x 64, float32 and bfloat16; one layer, 32 x 8 x 128) have
//   workspace   8 MiB for each layer, 26.25 lists, 8 bytes for each of the batch, 256 bytes
// Other cells, directions and numbers of layers follow from these words and were not seen. The
// mask of dropout in the reserve is not known, and not here.
#include "csrc/aten/cuda_rnn.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>

#include "backend/host_layer.h"
#include "csrc/launch/launch.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/cublas_workspaces.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

// By cudnnRNNMode_t.
constexpr std::array<int64_t, 4> kGates = {1, 1, 4, 3};
constexpr std::array<int64_t, 4> kKept = {1, 1, 5, 4};  // GRU: the hidden part of the candidate

struct Layout {
  int64_t rows, batch, steps, hidden, layers, directions, gates, kept, itemsize;
  c10::DeviceIndex device;
  bool packed;

  Layout(const Tensor& input, const Tensor& hx, int64_t mode, int64_t width, int64_t count,
         bool bidirectional, c10::SymIntArrayRef batch_sizes)
      : rows(batch_sizes.empty() ? input.size(0) * input.size(1) : input.size(0)),
        batch(hx.size(1)),
        steps(batch_sizes.empty() ? rows / std::max<int64_t>(batch, 1)
                                  : static_cast<int64_t>(batch_sizes.size())),
        hidden(width),
        layers(count),
        directions(bidirectional ? 2 : 1),
        gates(kGates.at(static_cast<std::size_t>(mode))),
        kept(kKept.at(static_cast<std::size_t>(mode))),
        itemsize(static_cast<int64_t>(input.itemsize())),
        device(input.device().index()),
        packed(!batch_sizes.empty()) {}

  // cuDNN has two biases for each gate, also where the module has none.
  int64_t biases(std::size_t weights) const {
    const bool has_none = weights == static_cast<std::size_t>(2 * layers * directions);
    return has_none ? 2 * gates * hidden * layers * directions : 0;
  }
  int64_t list() const { return rows * hidden * itemsize * directions; }
  int64_t reserve() const { return list() * (kept * layers + layers - 1) + 256; }
  int64_t workspace() const {
    constexpr int64_t kSmall = 128, kOfLayer = int64_t{8} << 20;
    const bool lstm_or_gru = gates > 1;
    if (lstm_or_gru && hidden <= kSmall && !packed && itemsize <= 4) {
      return kOfLayer * layers * directions + list() * 105 / 4 + 8 * batch + 256;
    }
    const int64_t states = (2 * gates + 2) * layers * batch * hidden * itemsize * directions;
    return list() * gates * layers + states + 768;
  }
};

int64_t numel_of(TensorList weights) {
  int64_t numel = 0;
  for (const Tensor& weight : weights) numel += weight.numel();
  return numel;
}

void take_workspace(const Layout& n) {
  allocated_together({static_cast<double>(n.workspace())}, n.device);
}

// The products of all steps with the weights of the input, and of the weights' gradients; then the
// steps, each a product with the weights of the state and what is pointwise. A step waits for the
// one before it and for the layer below, so that layers run beside each other (Appleyard et al.,
// Optimizing Performance of Recurrent Neural Networks on GPUs, arXiv 1604.01946). The factors of a
// product are `passes` times those of the forward pass.
void launch_kernels(const char* op, const Layout& n, const Tensor& input, TensorList weights,
                    double passes) {
  npusim::Cost whole, steps;
  for (npusim::Cost* cost : {&whole, &steps}) {
    do_on_matrix_units(*cost, npusim::Work::matmul, input);
    cost->kernels = 0;
  }
  const auto product = [&](npusim::Cost& cost, int64_t rows, const Tensor& weight, double times) {
    const auto r = static_cast<double>(rows);
    const auto elements = static_cast<double>(weight.numel());
    cost.flops += 2 * times * r * elements;
    cost.bytes += times * static_cast<double>(n.itemsize) *
                  (elements + r * static_cast<double>(weight.size(0) + weight.size(1)));
    cost.tiles = npusim::tiles_of(1, r, static_cast<double>(weight.size(0)));
  };
  const auto pointwise = static_cast<double>(n.itemsize * n.batch * n.hidden * (2 * n.gates + 3));
  const auto group = static_cast<int64_t>(weights.size()) / (n.layers * n.directions);
  for (int64_t i = 0; i < n.layers * n.directions; ++i) {
    const Tensor& of_input = weights[static_cast<std::size_t>(i * group)];
    const Tensor& of_state = weights[static_cast<std::size_t>(i * group + 1)];
    product(whole, n.rows, of_input, passes);
    if (passes > 1) product(whole, n.rows, of_state, 1);  // the weight's gradient
    whole.kernels += passes;
    product(steps, n.batch, of_state, static_cast<double>(n.steps));
    steps.bytes += pointwise * static_cast<double>(n.steps);
  }
  steps.kernels = static_cast<double>(n.steps + n.layers - 1);
  for (const npusim::Cost& cost : {whole, steps}) {
    launch({op, npusim::CommandKind::kernel, cost}, n.device, [] {});
  }
  npusim::pass_host_calls(npusim::HostCall::kernel, n.steps + n.layers - 1);
}

Tensor by_time(const Tensor& tensor, bool batch_first) {
  return batch_first ? tensor.transpose(0, 1) : tensor;
}

Tensor contiguous(const Tensor& tensor, c10::DeviceIndex device) {
  if (tensor.is_contiguous()) return tensor;
  return device_empty(tensor.sizes(), tensor.scalar_type(), device);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& input, TensorList weights, int64_t /*weight_stride0*/, const MaybeTensor& buffer,
    const Tensor& hx, const MaybeTensor& cx, int64_t mode, c10::SymInt hidden_size,
    c10::SymInt proj_size, int64_t num_layers, bool batch_first, double /*dropout*/, bool train,
    bool bidirectional, c10::SymIntArrayRef batch_sizes, const MaybeTensor& /*dropout_state*/) {
  const bool packed = !batch_sizes.empty();
  const Layout n(input, hx, mode, hidden_size.expect_int(), num_layers, bidirectional, batch_sizes);
  const at::ScalarType dtype = input.scalar_type();
  const Tensor x = contiguous(by_time(input, batch_first && !packed), n.device);
  const bool flat = buffer.has_value() && buffer->defined();
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t projected = proj_size.expect_int();
  sizes.back() = (projected != 0 ? projected : n.hidden) * n.directions;
  const Tensor output = device_empty(sizes, dtype, n.device);
  const Tensor hy = device_empty(hx.sizes(), dtype, n.device);
  const bool cells = cx.has_value() && cx->defined();
  const Tensor cy = device_empty(cells ? cx->sizes() : at::IntArrayRef({0}), dtype, n.device);
  // Weights that are not one chunk are copied into one, which the backward pass takes.
  const Tensor all =
      flat ? at::alias(*buffer)
           : device_empty({numel_of(weights) + n.biases(weights.size())}, dtype, n.device);
  Tensor reserve;
  {
    const Tensor workspace = device_empty({n.workspace()}, at::kByte, n.device);
    reserve = device_empty({train ? n.reserve() : 0}, at::kByte, n.device);
    launch_kernels("aten::_cudnn_rnn", n, input, weights, 1);
  }
  return {by_time(output, batch_first && !packed), hy, cy, reserve, all};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> backward(
    const Tensor& input, TensorList weights, int64_t /*weight_stride0*/, const Tensor& /*buffer*/,
    const Tensor& hx, const MaybeTensor& cx, const Tensor& output, const MaybeTensor& grad_output,
    const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, int64_t mode, c10::SymInt hidden_size,
    c10::SymInt /*proj_size*/, int64_t num_layers, bool batch_first, double /*dropout*/, bool train,
    bool bidirectional, c10::SymIntArrayRef batch_sizes, const MaybeTensor& /*dropout_state*/,
    const Tensor& /*reserve*/, std::array<bool, 4> wanted) {
  const auto given = [](const MaybeTensor& tensor) {
    return tensor.has_value() && tensor->defined();
  };
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) {
    return {Tensor(), Tensor(), Tensor(), std::vector<Tensor>(weights.size())};
  }
  TORCH_CHECK(train, "cudnn RNN backward can only be called in training mode");
  const bool packed = !batch_sizes.empty();
  const Layout n(input, hx, mode, hidden_size.expect_int(), num_layers, bidirectional, batch_sizes);
  const auto or_zeros = [](const MaybeTensor& grad, const Tensor& like) {
    return grad.has_value() && grad->defined() ? *grad : at::empty_like(like);
  };
  const Tensor dy = or_zeros(grad_output, output);
  const Tensor dhy = or_zeros(grad_hy, hx);
  const Tensor dcy = given(cx) ? or_zeros(grad_cy, *cx) : Tensor();
  const auto transposed = [&](const Tensor& tensor) {
    return contiguous(by_time(tensor, batch_first && !packed), n.device);
  };
  Tensor dx, dhx, dcx;
  {
    const Tensor x = transposed(input), gradient = transposed(dy);
    dx = device_empty(x.sizes(), input.scalar_type(), n.device);
    dhx = device_empty(hx.sizes(), hx.scalar_type(), n.device);
    if (given(cx)) dcx = device_empty(cx->sizes(), cx->scalar_type(), n.device);
    take_workspace(n);
  }
  std::vector<Tensor> gradients;
  if (wanted[3]) {
    const Tensor x = transposed(input);
    const int64_t biases = n.biases(weights.size());
    int64_t at = 0;
    const Tensor all =
        device_empty({numel_of(weights) + biases}, weights[0].scalar_type(), n.device);
    take_workspace(n);
    for (const Tensor& weight : weights) {
      if (biases != 0) {  // another order than the module's
        gradients.push_back(device_empty(weight.sizes(), weight.scalar_type(), n.device));
        continue;
      }
      gradients.push_back(all.narrow(0, at, weight.numel()).view(weight.sizes()));
      at += weight.numel();
    }
  }
  launch_kernels("aten::_cudnn_rnn_backward", n, input, weights, 2);
  return {by_time(dx, batch_first && !packed), dhx, dcx, gradients};
}

// Copies of weights, which share a storage and are no views of each other.
std::vector<Tensor> in_one_chunk(TensorList weights, at::ScalarType dtype) {
  const Tensor chunk = at::zeros({numel_of(weights)}, weights[0].options().dtype(dtype));
  std::vector<Tensor> made;
  int64_t begin = 0;
  for (const Tensor& weight : weights) {
    Tensor part = at::empty({0}, chunk.options());
    part.set_(chunk.storage(), begin, weight.sizes(), c10::contiguous_strides(weight.sizes()));
    part.copy_(weight);
    begin += weight.numel();
    made.push_back(std::move(part));
  }
  return made;
}

}  // namespace

void register_cuda_rnn(torch::Library& kernels) {
  kernels.impl("_cudnn_rnn", &forward);
  kernels.impl("_cudnn_rnn_backward", &backward);
}

bool dry_cudnn_takes(const Tensor& input) {
  if (!as_cuda() || !input.is_privateuseone()) return false;
  const at::ScalarType dtype = input.scalar_type();
  const int major = npusim::device_spec(input.device().index()).capability_major;
  const bool has_dtype = dtype == at::kHalf || dtype == at::kFloat || dtype == at::kDouble ||
                         (dtype == at::kBFloat16 && major >= 8);
  return at::globalContext().userEnabledCuDNN() && has_dtype && input.numel() != 0;
}

std::tuple<Tensor, Tensor, Tensor> dry_cudnn_rnn(const Tensor& input, TensorList weights,
                                                 bool has_biases, const Tensor& hidden,
                                                 const Tensor& cell, int64_t mode, int64_t layers,
                                                 bool batch_first, double dropout, bool train,
                                                 bool bidirectional, at::IntArrayRef batch_sizes) {
  // torch's wrapper for autocast converts all operands, the weights first.
  std::vector<Tensor> factors = weights.vec();
  Tensor x = input, hx = hidden, cx = cell;
  const bool converts = at::autocast::is_autocast_enabled(at::kPrivateUse1);
  if (converts) {
    const at::ScalarType to = at::autocast::get_autocast_dtype(at::kPrivateUse1);
    factors = in_one_chunk(weights, to);
    if (cell.defined()) cx = cell.to(to);
    hx = hidden.to(to);
    x = input.to(to);
  }
  const bool projects = cell.defined() && cell.size(2) != hidden.size(2);
  const int64_t width = projects ? cell.size(2) : hidden.size(2);
  // Modules keep their weights in one buffer, and autocast converts them into one. Weights that
  // were computed are in none.
  const bool flat = converts || std::all_of(weights.begin(), weights.end(),
                                            [](const Tensor& weight) { return weight.is_leaf(); });
  const MaybeTensor buffer = flat ? MaybeTensor(factors[0].detach()) : MaybeTensor(std::nullopt);
  if (train && dropout > 0) keep_dropout_state(input.device().index());
  auto made = at::_cudnn_rnn(x, factors, (has_biases ? 4 : 2) + (projects ? 1 : 0), buffer, hx,
                             cx.defined() ? MaybeTensor(cx) : std::nullopt, mode, width,
                             projects ? hidden.size(2) : 0, layers, batch_first, dropout, train,
                             bidirectional, batch_sizes, std::nullopt);
  return {std::get<0>(made), std::get<1>(made), std::get<2>(made)};
}

}  // namespace torch_npusim
