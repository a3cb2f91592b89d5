// SPDX-License-Identifier: BSD-3-Clause
// convolution and convolution_backward (with the _overrideable pair that torch's own composite
// calls): at::convolution and at::convolution_backward on host views, so the CPU's choice among its
// convolution libraries, its memory formats and its bits are the device's. Double backward is
// torch's composite of the two. Cost: two operations per multiply-add, every tensor moved
// once, and images that matrix units want in another order twice more.
//
// `convolution` itself is registered, not only the overrideable pair, because the composite in
// front of the pair prepares its operands for CUDA (1-d as 2-d, expanded weights) before the CPU
// code could choose.
#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/ceil_div.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "backend/host_layer.h"
#include "csrc/operands/host_view.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/on_host_views.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

// Elements of the forward pass's result; 0 for shapes that at::convolution is about to refuse.
double results(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  const auto spatial = static_cast<std::size_t>(std::max<int64_t>(input.dim() - 2, 0));
  if (spatial == 0 || weight.dim() != input.dim()) return 0;
  const auto along = [](at::IntArrayRef values, std::size_t d, int64_t otherwise) {
    return values.empty() ? otherwise : values[std::min(d, values.size() - 1)];
  };
  const int64_t channels = g.transposed ? weight.size(1) * g.groups : weight.size(0);
  double count = static_cast<double>(input.size(0) * channels);
  for (std::size_t d = 0; d < spatial; ++d) {
    const auto dim = static_cast<int64_t>(d) + 2;
    const int64_t stride = along(g.stride, d, 1);
    const int64_t reach = along(g.dilation, d, 1) * (weight.size(dim) - 1) + 1;
    const int64_t padding = 2 * along(g.padding, d, 0);
    const int64_t room = input.size(dim) + padding - reach;
    const int64_t length = g.transposed ? (input.size(dim) - 1) * stride - padding + reach +
                                              along(g.output_padding, d, 0)
                                        : (room < 0 || stride <= 0 ? 0 : room / stride + 1);
    count *= static_cast<double>(std::max<int64_t>(length, 0));
  }
  return count;
}

// Multiply-adds of the forward pass: each result, or transposed each input, meets one slice of the
// weight.
double multiply_adds(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  const double meetings = results(input, weight, g);
  if (meetings == 0 || weight.size(0) == 0) return 0;
  return (g.transposed ? static_cast<double>(input.numel()) : meetings) *
         static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
}

bool is_depthwise(npusim::Work work) {
  return work == npusim::Work::depthwise || work == npusim::Work::depthwise_backward;
}

// Whether images are converted for it. float64 counts as not: no recording has asked.
bool on_matrix_units(const npusim::Cost& cost, const at::Tensor& input) {
  if (!input.is_privateuseone() || is_depthwise(cost.work)) return false;
  return cost.precision != npusim::Precision::f64 &&
         npusim::device_spec(input.device().index()).has_matrix_units(cost.precision);
}

// Matrix units work along the channels: images that are not channels_last are converted before, and
// what comes out is converted back. Each of `images` elements is read and written once more, and on
// one side out of order, which takes half as long again. A channel by itself needs no matrix units.
double converted_bytes(const npusim::Cost& cost, const at::Tensor& input, const at::Tensor& weight,
                       double images) {
  const auto last = [](const at::Tensor& tensor) {
    return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
  };
  if (!on_matrix_units(cost, input) || last(input) || last(weight)) return 0;
  return 3 * images * static_cast<double>(input.itemsize());
}

// cuDNN launches a kernel for each tensor that is converted: operands and results.
void pass_conversions(const npusim::Cost& cost, const at::Tensor& input, const at::Tensor& weight,
                      int64_t tensors) {
  if (converted_bytes(cost, input, weight, 1) > 0) {
    npusim::pass_host_calls(npusim::HostCall::kernel, tensors);
  }
}

// Whether filters have one element.
bool is_pointwise(const at::Tensor& weight) {
  return weight.dim() > 2 && weight.numel() == weight.size(0) * weight.size(1);
}

// cuDNN adds no bias: torch launches a pointwise addition to the result. Its own kernel for
// channels by themselves, which are not channels_last, adds the bias on the way.
double biased_bytes(const npusim::Cost& cost, const at::Tensor& input, const at::Tensor& bias,
                    double results) {
  const bool on_the_way = cost.work == npusim::Work::depthwise &&
                          input.suggest_memory_format() == at::MemoryFormat::Contiguous;
  if (!bias.defined() || on_the_way) return 0;
  return 2 * results * static_cast<double>(input.itemsize());
}

// Workspaces of cuDNN. Kernels for matrix units have NHWC copies of the operands, and 16 bytes. In
// 16 bits channels that are no multiple of 8 are padded to one, and NHWC operands copied for it.
// From recordings of an H100 and lists of an H200 (torch 2.11: ResNet-50, DenseNet, DeepLab,
// VGG-16, four U-Nets, R3D-18, ViT, ConvNeXt, Swin, MobileNet), within 4 MiB in TF32:
//   forward, filters of 1 x 1                           nothing
//   forward, 3 channels in TF32                         nothing up to 3 x 3, else all operands
//   forward, 3 channels in 16 bits                      NCHW: nothing up to 4 x 4; NHWC: nothing
//                                                       below 64 filters (seen: 16 and 64)
//   forward in TF32, up to 64 channels become twice     images and filters
//   forward, others                                     all operands
//   gradients                                           all operands; 1 x 1: images
//   gradients in TF32, channels not of 16 bytes         nothing
//   TF32, less than kSmall operations                   nothing (seen: to 38 million, from 460)
// Gradients of 3 x 3 filters without strides are Winograd's, not fused, where that is fastest: its
// workspace is exact. In float32 that is always so, in TF32 below kMedium and from 32 channels on
// (seen: to 460 million operations; from 1.9 billion on three of 25).
// Gradients of the input are exact. Those of the weight take partial sums besides, whose number
// cuDNN's heuristics choose: they are not here.
class Workspace {
 public:
  Workspace(const npusim::Cost& cost, const at::Tensor& input, const at::Tensor& weight,
            const Geometry& g)
      : device_(input.device().index()) {
    if (!as_cuda() || weight.dim() < 4) return;
    const bool on_units = on_matrix_units(cost, input);
    if (g.transposed) {
      turns_ = input.itemsize() == 2 && on_units;
      return;
    }
    const double operations = 2 * multiply_adds(input, weight, g);
    const bool tf32 = input.itemsize() == 4 && cost.precision == npusim::Precision::tf32;
    converts_ = converted_bytes(cost, input, weight, 1) > 0 && !(tf32 && operations < kSmall);
    window_ = weight.numel() == 0 ? 0 : weight.numel() / (weight.size(0) * weight.size(1));
    aligned_ = static_cast<int64_t>(input.itemsize()) * weight.size(1) % 16 == 0;
    widens_ = tf32 && weight.size(1) <= 64 && weight.size(0) == 2 * weight.size(1);
    if (g.groups == 1 && window_ > 1 && input.itemsize() == 2 && on_units) {
      pads_input_ = weight.size(1) % 8 != 0;
      pads_result_ = weight.size(0) % 8 != 0;
    }
    const auto ones = [](at::IntArrayRef values) {
      return std::all_of(values.begin(), values.end(), [](int64_t each) { return each == 1; });
    };
    const bool winograd = input.scalar_type() == at::kFloat && weight.dim() == 4 && g.groups == 1 &&
                          weight.size(2) == 3 && weight.size(3) == 3 && ones(g.stride) &&
                          ones(g.dilation) && input.is_contiguous() && weight.is_contiguous();
    winograd_ = winograd && (!tf32 || (operations < kMedium && weight.size(1) >= 32));
  }
  void take_forward(const at::Tensor& out, const at::Tensor& input,
                    const at::Tensor& weight) const {
    if (turns_) return;
    if (pads_input_ && (converts_ ? window_ <= 16 : weight.size(0) < 64)) return;
    if (!pads() && (!converts_ || window_ <= (aligned_ ? 1 : 9))) return;
    // float16 has a kernel for a first layer of 64 filters of 7 x 7: four channels.
    const bool first_layer = pads_input_ && !converts_ && window_ == 49 && weight.size(0) == 64 &&
                             input.scalar_type() == at::kHalf;
    const int64_t multiple = first_layer ? 4 : 8;
    take(copy(input, pads_input_, multiple) + filters(weight, multiple) +
         (widens_ && !pads_result_ ? 0 : copy(out, pads_result_)));
  }
  void take_input_gradient(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& weight) const {
    if (turns_) return take(grad.nbytes() + input.nbytes() + weight.nbytes());
    if (!pads() && (!converts_ || !aligned_)) return;
    take(copy(grad, pads_result_) + copy(input, pads_input_) +
         (window_ == 1 ? 0 : filters(weight)));
  }
  void take_weight_gradient(const at::Tensor& grad, const at::Tensor& input,
                            const at::Tensor& weight) const {
    if (turns_) return;
    if (!winograd_) return take_input_gradient(grad, input, weight);
    // F(4 x 4, 3 x 3): of each tile and of each filter 36 numbers, of both images and the filters.
    constexpr int64_t kTile = 4, kNumbers = 36;
    const int64_t tiles =
        grad.size(0) * at::ceil_div(grad.size(2), kTile) * at::ceil_div(grad.size(3), kTile);
    const int64_t made = weight.size(0), read = weight.size(1);
    const int64_t numbers = kNumbers * (tiles * (made + read) + made * read);
    allocated_together({4.0 * static_cast<double>(numbers)}, device_);
  }

 private:
  static constexpr double kSmall = 1 << 27, kMedium = 1 << 30;  // operations
  bool pads() const { return pads_input_ || pads_result_; }
  // Bytes of a copy whose channels are a multiple of so many.
  static std::size_t padded(std::size_t bytes, int64_t channels, int64_t multiple) {
    const int64_t made = (channels + multiple - 1) / multiple * multiple;
    if (channels == 0) return 0;
    return bytes / static_cast<std::size_t>(channels) * static_cast<std::size_t>(made);
  }
  // Bytes of an operand's copy: none where the kernel takes it as it is.
  std::size_t copy(const at::Tensor& images, bool pads, int64_t multiple = 8) const {
    if (pads) return padded(images.nbytes(), images.size(1), multiple);
    return converts_ ? images.nbytes() : 0;
  }
  std::size_t filters(const at::Tensor& weight, int64_t multiple = 8) const {
    if (!pads()) return weight.nbytes();
    const std::size_t by_input = padded(weight.nbytes(), weight.size(1), multiple);
    return padded(by_input, weight.size(0), 8);
  }
  void take(std::size_t bytes) const {
    allocated_together({static_cast<double>(bytes + 16)}, device_);
  }
  c10::DeviceIndex device_;
  bool converts_ = false, aligned_ = false, widens_ = false, winograd_ = false;
  bool turns_ = false;  // transposed, in 16 bits
  bool pads_input_ = false, pads_result_ = false;
  int64_t window_ = 0;  // elements of a filter
};

// The buffer of the sum that is the bias's gradient.
void sum_of_all_but_channels(const at::Tensor& grad) {
  CallArguments but_channels;
  for (int64_t d = 0; d < grad.dim(); ++d) {
    if (d != 1) but_channels.dims.push_back(d);
  }
  take_sum(grad, but_channels);
}

// torch gives cuDNN operands of one memory format: copies of the others live as long as the call.
class Copies {
 public:
  Copies(std::initializer_list<const at::TensorBase*> operands, at::MemoryFormat format) {
    if (!as_cuda()) return;
    for (const at::TensorBase* operand : operands) {
      if (operand->dim() < 4 || operand->is_contiguous(format)) continue;
      held_.push_back(allocate_on_device(operand->nbytes(), operand->device().index()));
    }
  }

 private:
  std::vector<c10::DataPtr> held_;
};

npusim::Work work_of(const at::Tensor& weight, const Geometry& g, bool backward) {
  using enum npusim::Work;
  if (g.groups == 1) return convolution;
  if (weight.dim() > 1 && weight.size(1) == 1) return backward ? depthwise_backward : depthwise;
  return backward ? grouped_backward : grouped;
}

npusim::Cost cost_of(npusim::Work work, Operands operands, const at::Tensor& input,
                     const at::Tensor& weight, const Geometry& g, double macs, double images) {
  npusim::Cost cost = elementwise_cost(operands);
  cost.flops = 2.0 * macs;
  do_on_matrix_units(cost, work, input);
  // Filters of one element on matrix units are the product of two matrices.
  if (work == npusim::Work::convolution && is_pointwise(weight) && on_matrix_units(cost, input)) {
    cost.work = npusim::Work::matmul;
  }
  // A channel by itself is no product: its kernel sums on the lanes of float32.
  if (is_depthwise(work) && cost.precision != npusim::Precision::f64) {
    cost.precision = npusim::Precision::f32;
  }
  const auto groups = static_cast<double>(g.groups);
  const double channels = g.transposed ? static_cast<double>(weight.size(1)) * groups
                                       : static_cast<double>(weight.size(0));
  if (const double made = results(input, weight, g); made > 0) {
    const double rows = made / channels, columns = channels / groups;
    cost.tiles = npusim::tiles_of(groups, rows, columns);
    // Few channels leave a part of each tile empty.
    if (cost.work == npusim::Work::convolution) {
      cost.done = cost.tiles * npusim::kTile * npusim::kTile / (rows * columns);
    }
  }
  cost.bytes += converted_bytes(cost, input, weight, images);
  return cost;
}

npusim::Cost forward_cost(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                          const Geometry& g) {
  const std::array<const at::TensorBase*, 3> operands = {&input, &weight, &bias};
  const double made = results(input, weight, g);
  const double images = is_pointwise(weight) ? 0 : static_cast<double>(input.numel()) + made;
  npusim::Cost cost = cost_of(work_of(weight, g, false), operands, input, weight, g,
                              multiply_adds(input, weight, g), images);
  cost.bytes += biased_bytes(cost, input, bias, made);
  return cost;
}

// The gradients of the input and of the weight are a pass each; that of the bias is a sum.
npusim::Cost backward_cost(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& weight, const Geometry& g,
                           const std::array<bool, 3>& wanted) {
  const std::array<const at::TensorBase*, 3> operands = {&grad, &input, &weight};
  const double passes = (wanted[0] ? 1.0 : 0.0) + (wanted[1] ? 1.0 : 0.0);
  const double images =
      static_cast<double>(grad.numel()) + passes * static_cast<double>(input.numel());
  npusim::Cost cost = cost_of(work_of(weight, g, true), operands, input, weight, g,
                              passes * multiply_adds(input, weight, g), images);
  if (wanted[2]) cost.bytes += static_cast<double>(grad.numel() * grad.itemsize());
  return cost;
}

// The CPU takes other code when a gradient will be asked for (inference-only Winograd on aarch64).
// The flag goes to a view of this call: autograd is excluded, so nothing records it.
void keep_gradient_request(const at::Tensor& operand, const at::Tensor& view) {
  if (operand.requires_grad()) view.unsafeGetTensorImpl()->set_requires_grad(true);
}

// In a dry run: a shape in the order of dimensions that the CPU's library would give the result.
class HostFormat {
 public:
  HostFormat(const at::Tensor& input, const at::Tensor& weight,
             const std::optional<at::Tensor>& bias, at::OptionalIntArrayRef bias_sizes,
             const Geometry& g) {
    if (!npusim::dry() || weight.dim() < 3) return;
    const bool sequences = weight.dim() == 3;
    const at::Tensor images = sequences ? row_of(input, /*contiguous=*/true) : host_view(input);
    const at::Tensor filters = sequences ? row_of(weight, false) : host_view(weight);
    if (as_cuda()) {  // cuDNN's results are as its operands, either of them
      const auto last =
          filters.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
      if (images.suggest_memory_format() == last || filters.suggest_memory_format() == last) {
        format_ = last;
      }
      return;
    }
    const auto along = [sequences](at::IntArrayRef values, int64_t of_rows) {
      c10::SymDimVector made(values.begin(), values.end());
      if (sequences && made.size() == 1) made.insert(made.begin(), of_rows);
      return made;
    };
    const c10::SymDimVector stride = along(g.stride, 1), padding = along(g.padding, 0),
                            dilation = along(g.dilation, 1),
                            output_padding = along(g.output_padding, 0);
    at::OptionalSymIntArrayRef sizes_of_bias;
    if (bias_sizes.has_value()) sizes_of_bias = c10::fromIntArrayRefSlow(*bias_sizes);
    const at::native::ConvBackend library = at::native::select_conv_backend(
        images, filters,
        bias.has_value() ? std::optional<at::Tensor>(host_view(*bias)) : std::nullopt, stride,
        padding, dilation, g.transposed, output_padding, g.groups, sizes_of_bias);
    format_ = at::native::_determine_backend_memory_format(images, filters, library);
  }

  // That of four dimensions or five.
  at::MemoryFormat format() const { return format_; }

  at::Tensor of(const at::Tensor& made) const {
    if (!npusim::dry() || !made.defined() || made.dim() < 3) return made;
    if (made.dim() == 3) return of(made.unsqueeze(2)).squeeze(2);
    if (format_ == at::MemoryFormat::Contiguous) return made.contiguous();
    return at::empty_like(made, made.options(), format_);  // one channel lies either way
  }

 private:
  // A sequence as torch convolves it: as an image of one row, which nothing reads.
  static at::Tensor row_of(const at::Tensor& sequence, bool contiguous) {
    at::Tensor view = host_view(sequence);
    c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
    if (contiguous && !view.is_contiguous()) impl.set_sizes_contiguous(sequence.sizes());
    c10::DimVector sizes(view.sizes()), strides(view.strides());
    strides.insert(strides.begin() + 2, sizes[2] * strides[2]);
    sizes.insert(sizes.begin() + 2, 1);
    impl.set_sizes_and_strides(sizes, strides);
    return view;
  }
  at::MemoryFormat format_ = at::MemoryFormat::Contiguous;
};

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const at::Tensor given_bias = bias.value_or(at::Tensor());
  const std::array<const at::TensorBase*, 3> operands = {&input, &weight, &given_bias};
  const auto cost = forward_cost(input, weight, given_bias, geometry);
  const HostFormat format(input, weight, bias, std::nullopt, geometry);
  const Workspace workspace(cost, input, weight, geometry);
  if (!is_pointwise(weight)) pass_conversions(cost, input, weight, 3);
  return on_host_views("aten::convolution", operands, cost, [&](CpuCall& call) {
    const at::Tensor input_view = call.view(input, /*written=*/false);
    const at::Tensor weight_view = call.view(weight, /*written=*/false);
    keep_gradient_request(input, input_view);
    keep_gradient_request(weight, weight_view);
    at::Tensor out = at::convolution(input_view, weight_view, view_of(call, bias), stride, padding,
                                     dilation, transposed, output_padding, groups);
    call.finish();
    const Copies copies({&input, &weight}, format.format());
    at::Tensor made = call.result(format.of(out));
    workspace.take_forward(made, input, weight);
    return made;
  });
}

// torch.jit.trace passes over `convolution` and writes down the `_convolution` that it expects
// inside; without that call it would write down what happens on the host views.
at::Tensor convolve_or_trace(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                             at::IntArrayRef output_padding, int64_t groups) {
  if (!at::tracer::impl::is_dispatch_enabled()) {
    return convolve(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                    groups);
  }
  at::Context& context = at::globalContext();
  return at::_convolution(input, weight, bias, stride, padding, dilation, transposed,
                          output_padding, groups, context.benchmarkCuDNN(),
                          context.deterministicCuDNN() || context.deterministicAlgorithms(),
                          context.userEnabledCuDNN(), context.allowTF32CuDNN(at::Float32Op::CONV));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const std::array<const at::TensorBase*, 3> operands = {&grad_output, &input, &weight};
  const auto cost = backward_cost(grad_output, input, weight, geometry, output_mask);
  const HostFormat format(input, weight, std::nullopt, bias_sizes, geometry);
  const Workspace workspace(cost, input, weight, geometry);
  pass_conversions(cost, input, weight, 3 + (output_mask[0] ? 1 : 0) + (output_mask[1] ? 1 : 0));
  return on_host_views("aten::convolution_backward", operands, cost, [&](CpuCall& call) {
    call.tell_apart(output_mask[0] + 2 * output_mask[1]);
    auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
        call.view(grad_output, false), call.view(input, false), call.view(weight, false),
        bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask);
    call.finish();
    std::tuple<at::Tensor, at::Tensor, at::Tensor> made;
    {
      const Copies copies({&grad_output, &input, &weight}, format.format());
      std::get<0>(made) = call.result(format.of(grad_input));
      if (output_mask[0]) workspace.take_input_gradient(grad_output, input, weight);
      std::get<1>(made) = call.result(format.of(grad_weight));
      if (output_mask[1]) workspace.take_weight_gradient(grad_output, input, weight);
    }
    std::get<2>(made) = call.result(grad_bias);
    if (output_mask[2] && as_cuda()) sum_of_all_but_channels(grad_output);
    return made;
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward_overrideable(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
  const std::array<int64_t, 1> bias_sizes = {transposed ? weight.size(1) * groups : weight.size(0)};
  return convolve_backward(grad_output, input, weight, at::IntArrayRef(bias_sizes), stride, padding,
                           dilation, transposed, output_padding, groups, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution", &convolve_or_trace);
  m.impl("convolution_backward", &convolve_backward);
  m.impl("convolution_overrideable", &convolve);
  m.impl("convolution_backward_overrideable", &convolve_backward_overrideable);
}

}  // namespace torch_npusim
