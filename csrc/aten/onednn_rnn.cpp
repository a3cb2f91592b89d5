// SPDX-License-Identifier: BSD-3-Clause
// Layers of LSTMs by oneDNN. The workspace that the forward pass leaves to the backward pass is the
// library's own, and no device has it: it stays a tensor of the CPU (rule M13).
#include <ATen/core/Tensor.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <torch/library.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "csrc/observers/route_taken.h"
#include "csrc/routes/cpu_kernel.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using at::Tensor;

template <class Op, class Schema = typename Op::schema>
struct Layer;

template <class Op, class Result, class... Args>
struct Layer<Op, Result(Args...)> {
  static Result call(Args... args) {
    const auto body = [](c10::DeviceIndex, CpuCall& call, const auto&... arguments) {
      note_route(Route::cpu_kernel);
      auto [output, hidden, cell, workspace] = Op::redispatch(
          kernel_for(call, CpuKernel<Op>::traits()), cpu_kernel::view(call, arguments)...);
      call.finish();
      output = call.result(std::move(output));
      hidden = call.result(std::move(hidden));
      cell = call.result(std::move(cell));
      // The replays of a graph write to the workspace of its capture.
      const bool in_graph = GraphBlocks::capturing() || GraphBlocks::replaying();
      if (in_graph || npusim::dry()) workspace = call.result(std::move(workspace));
      return Result(std::move(output), std::move(hidden), std::move(cell), std::move(workspace));
    };
    return CpuKernel<Op>::command(body, args...);
  }
};

// An argument that is no operand: the CPU kernel gets it as it is.
struct OnHost {
  OnHost(const Tensor& host) : tensor(host) {}
  operator const Tensor&() const { return tensor; }
  const Tensor& tensor;
};

template <class Op, class Schema = typename Op::schema>
struct LayerBackward;

template <class Op, class Result, class... Args>
struct LayerBackward<Op, Result(Args...)> {
  static constexpr std::size_t last = sizeof...(Args) - 1;

  template <std::size_t... index>
  static auto last_on_host(std::index_sequence<index...>)
      -> Result (*)(std::conditional_t<index == last, OnHost, Args>...);
  using Schema =
      std::remove_pointer_t<decltype(last_on_host(std::make_index_sequence<sizeof...(Args)>()))>;

  static Result call(Args... args) {
    const Tensor& workspace = std::get<last>(std::tie(args...));
    if (workspace.is_cpu()) return CpuKernel<Op, Schema>::call(args...);
    return CpuKernel<Op>::call(args...);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mkldnn_rnn_layer", &Layer<at::_ops::mkldnn_rnn_layer>::call);
  m.impl("mkldnn_rnn_layer_backward", &LayerBackward<at::_ops::mkldnn_rnn_layer_backward>::call);
}

}  // namespace torch_npusim
