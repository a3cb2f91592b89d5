// SPDX-License-Identifier: BSD-3-Clause
// lstm, gru, rnn_tanh, rnn_relu (padded and packed), lstm_cell and gru_cell, written as composites
// of operators on device tensors, so that autograd, double backward and dropout are the usual ones.
//
// torch's own composites take a CUDA-like route for this device: one matmul per time step and fused
// cells. The CPU multiplies all time steps with the input weights at once, and gives whole LSTM
// layers to oneDNN, which rounds differently. Here it is the CPU's sequence of operators, one for
// one and in the same order (the order decides how gradients are summed), so the bits are the
// CPU's. The fused cells themselves are in rnn_fused_cells.cpp.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include "csrc/aten/cuda_rnn.h"
#include "csrc/cuda_rules/cudnn_rnn.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using at::TensorList;

enum class Kind : std::uint8_t { relu, tanh, lstm, gru };  // as cudnnRNNMode_t

struct Weights {
  Tensor input, hidden, input_bias, hidden_bias, projection;
};

struct State {
  Tensor hidden, cell;  // cell: LSTM only
};

// A padded sequence (time, batch, features), or a packed one: steps of shrinking batches, end to
// end in one (rows, features) tensor.
struct Sequence {
  Tensor data;
  std::optional<Tensor> batch_sizes;  // a host tensor
};

struct Options {
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
};

State map_state(const State& state, const std::function<Tensor(const Tensor&)>& change) {
  return {change(state.hidden), state.cell.defined() ? change(state.cell) : Tensor()};
}

State slice(const State& state, int64_t start, int64_t end) {
  return map_state(state, [&](const Tensor& t) { return t.narrow(0, start, end - start); });
}

State concatenate(const std::vector<State>& states) {
  std::vector<Tensor> hidden, cell;
  for (const State& state : states) {
    hidden.push_back(state.hidden);
    if (state.cell.defined()) cell.push_back(state.cell);
  }
  return {at::cat(hidden, 0), cell.empty() ? Tensor() : at::cat(cell, 0)};
}

Tensor input_gates(const Tensor& input, const Weights& w) {
  return at::linear(input, w.input, w.input_bias);
}

Tensor hidden_gates(const State& state, const Weights& w) {
  return at::linear(state.hidden, w.hidden, w.hidden_bias);
}

// Weights of a wrong height would leave fewer blocks than gates.
std::vector<Tensor> split_gates(const Tensor& gates, int64_t count) {
  TORCH_CHECK(gates.size(1) % count == 0, "the weights of an RNN must have a multiple of ", count,
              " rows, one block per gate, but they made ", gates.size(1), " columns");
  return gates.unsafe_chunk(count, 1);
}

State lstm_step(const Tensor& all_gates, const State& state, const Weights& w) {
  const auto gates = split_gates(all_gates, 4);
  const Tensor in = gates[0].sigmoid_();
  const Tensor forget = gates[1].sigmoid_();
  const Tensor candidate = gates[2].tanh_();
  const Tensor out = gates[3].sigmoid_();
  Tensor cell = (forget * state.cell).add_(in * candidate);
  Tensor hidden = out * cell.tanh();
  if (w.projection.defined()) hidden = at::matmul(hidden, w.projection.t());
  return {std::move(hidden), std::move(cell)};
}

State gru_step(const Tensor& from_input, const State& state, const Weights& w) {
  const auto in = split_gates(from_input, 3);
  const auto hid = split_gates(hidden_gates(state, w), 3);
  const Tensor reset = hid[0].add_(in[0]).sigmoid_();
  const Tensor update = hid[1].add_(in[1]).sigmoid_();
  const Tensor candidate = in[2].add(hid[2].mul_(reset)).tanh_();
  return {(state.hidden - candidate).mul_(update).add_(candidate), Tensor()};
}

// One time step, from what the input weights made of the input.
State step(Kind kind, const Tensor& from_input, const State& state, const Weights& w) {
  if (kind == Kind::gru) return gru_step(from_input, state, w);
  const Tensor gates = hidden_gates(state, w).add_(from_input);
  if (kind == Kind::lstm) return lstm_step(gates, state, w);
  return {kind == Kind::tanh ? at::tanh(gates) : at::relu(gates), Tensor()};
}

struct Pass {
  Tensor output;
  State last;
};

Pass run_padded(Kind kind, const Tensor& input, State state, const Weights& w, bool reversed) {
  std::vector<Tensor> steps = input_gates(input, w).unbind(0);
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reversed) std::reverse(steps.begin(), steps.end());
  std::vector<Tensor> outputs;
  for (const Tensor& from_input : steps) {
    state = step(kind, from_input, state, w);
    outputs.push_back(state.hidden);
  }
  if (reversed) std::reverse(outputs.begin(), outputs.end());
  return {at::stack(outputs, 0), std::move(state)};
}

// Sequences end one after the other: their states leave the batch and are put back at the end.
Pass run_packed(Kind kind, const Tensor& data, at::IntArrayRef batch_sizes, State state,
                const Weights& w) {
  const Tensor from_input = input_gates(data, w);
  std::vector<Tensor> outputs;
  std::vector<State> finished;
  int64_t row = 0;
  int64_t running = batch_sizes.front();
  for (const int64_t batch : batch_sizes) {
    const Tensor step_input = from_input.narrow(0, row, batch);
    row += batch;
    if (batch < running) {
      finished.push_back(slice(state, batch, running));
      state = slice(state, 0, batch);
    }
    running = batch;
    state = step(kind, step_input, state, w);
    outputs.push_back(state.hidden);
  }
  finished.push_back(std::move(state));
  std::reverse(finished.begin(), finished.end());
  Tensor output = at::cat(outputs, 0);
  return {std::move(output), concatenate(finished)};
}

// Backwards in time sequences join one after the other, each with its own initial state.
Pass run_packed_reversed(Kind kind, const Tensor& data, at::IntArrayRef batch_sizes,
                         const State& initial, const Weights& w) {
  const Tensor from_input = input_gates(data, w);
  std::vector<Tensor> outputs;
  int64_t row = data.size(0);
  int64_t running = batch_sizes.back();
  State state = slice(initial, 0, running);
  for (auto it = batch_sizes.rbegin(); it != batch_sizes.rend(); ++it) {
    if (*it > running) state = concatenate({state, slice(initial, running, *it)});
    running = *it;
    row -= running;
    state = step(kind, from_input.narrow(0, row, running), state, w);
    outputs.push_back(state.hidden);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), std::move(state)};
}

at::IntArrayRef lengths(const Tensor& sizes) {
  TORCH_CHECK(sizes.is_cpu() && sizes.scalar_type() == at::kLong && sizes.dim() == 1 &&
                  sizes.is_contiguous() && sizes.numel() > 0,
              "batch_sizes must be a vector of int64 on the CPU, as in a PackedSequence, but got ",
              sizes.toString(), " of sizes ", sizes.sizes());
  return {sizes.const_data_ptr<int64_t>(), static_cast<std::size_t>(sizes.numel())};
}

Pass run_pass(Kind kind, const Sequence& sequence, const State& state, const Weights& w,
              bool reversed) {
  if (!sequence.batch_sizes.has_value()) {
    return run_padded(kind, sequence.data, state, w, reversed);
  }
  const at::IntArrayRef batches = lengths(*sequence.batch_sizes);
  return reversed ? run_packed_reversed(kind, sequence.data, batches, state, w)
                  : run_packed(kind, sequence.data, batches, state, w);
}

std::vector<Weights> gather_weights(TensorList params, bool has_biases, bool has_projections) {
  const std::size_t group = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(params.size() % group == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> weights;
  for (std::size_t i = 0; i < params.size(); i += group) {
    weights.push_back({params[i], params[i + 1], has_biases ? params[i + 2] : Tensor(),
                       has_biases ? params[i + 3] : Tensor(),
                       has_projections ? params[i + group - 1] : Tensor()});
  }
  return weights;
}

struct StackResult {
  Tensor output;
  std::vector<Tensor> hidden, cell;
};

StackResult run_layers(Kind kind, Sequence sequence, const std::vector<State>& states,
                       const std::vector<Weights>& weights, const Options& options) {
  const std::size_t directions = options.bidirectional ? 2 : 1;
  const auto layers = static_cast<std::size_t>(options.layers);
  TORCH_CHECK(states.size() == layers * directions, "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == layers * directions, "Expected more weights in stacked_rnn");
  StackResult result;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (std::size_t direction = 0; direction < directions; ++direction) {
      const std::size_t i = layer * directions + direction;
      Pass pass = run_pass(kind, sequence, states[i], weights[i], direction == 1);
      outputs.push_back(std::move(pass.output));
      result.hidden.push_back(std::move(pass.last.hidden));
      result.cell.push_back(std::move(pass.last.cell));
    }
    sequence.data = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.dropout != 0 && options.train && layer + 1 < layers) {
      sequence.data = at::dropout(sequence.data, options.dropout, /*train=*/true);
    }
  }
  result.output = std::move(sequence.data);
  return result;
}

// The tensors of a call: autocast converts all of them, as around cuDNN. Under the rules for CUDA
// with the refusals of cuDNN.
struct Operands {
  Tensor data;
  std::vector<Tensor> states, params;
};

Operands operands_of(const Tensor& data, TensorList states, TensorList params, bool train) {
  Operands of{data, states.vec(), params.vec()};
  if (at::autocast::is_autocast_enabled(at::kPrivateUse1)) {
    const auto lower = [](const auto& operand) {
      const at::ScalarType to = at::autocast::get_autocast_dtype(at::kPrivateUse1);
      return at::autocast::cached_cast(to, operand, at::kPrivateUse1);
    };
    of = {lower(data), lower(states), lower(params)};
  }
  if (!cudnn_runs_rnns(of.data)) return of;
  check_cudnn_states(of.states.front(), of.states.size() > 1 ? of.states.back() : Tensor());
  return {as_operands_of_cudnn(of.data, train).front(), as_operands_of_cudnn(of.states, train),
          as_operands_of_cudnn(of.params, train)};
}

std::tuple<Tensor, Tensor> run_single_state(Kind kind, const Sequence& sequence, const Tensor& hx,
                                            TensorList params, bool has_biases,
                                            const Options& options) {
  const auto weights = gather_weights(params, has_biases, /*has_projections=*/false);
  std::vector<State> states;
  for (const Tensor& hidden : hx.unbind(0)) states.push_back({hidden, Tensor()});
  StackResult result = run_layers(kind, sequence, states, weights, options);
  return {std::move(result.output), at::stack(result.hidden, 0)};
}

template <Kind kind>
std::tuple<Tensor, Tensor> rnn_padded(const Tensor& input, const Tensor& hx, TensorList params,
                                      bool has_biases, int64_t num_layers, double dropout,
                                      bool train, bool bidirectional, bool batch_first) {
  at::native::check_attributes(input, params, {hx}, /*check_dtype=*/false);
  if (dry_cudnn_takes(input)) {
    const auto [out, last, none] =
        dry_cudnn_rnn(input, params, has_biases, hx, Tensor(), static_cast<int64_t>(kind),
                      num_layers, batch_first, dropout, train, bidirectional);
    return {out, last};
  }
  const Operands of = operands_of(input, hx, params, train);
  const Tensor by_time = batch_first ? of.data.transpose(0, 1) : of.data;
  auto [output, hidden] = run_single_state(kind, {by_time, std::nullopt}, of.states[0], of.params,
                                           has_biases, {num_layers, dropout, train, bidirectional});
  return {batch_first ? output.transpose(0, 1) : output, hidden};
}

template <Kind kind>
std::tuple<Tensor, Tensor> rnn_packed(const Tensor& data, const Tensor& batch_sizes,
                                      const Tensor& hx, TensorList params, bool has_biases,
                                      int64_t num_layers, double dropout, bool train,
                                      bool bidirectional) {
  if (dry_cudnn_takes(data)) {
    const auto [out, last, none] = dry_cudnn_rnn(
        data, params, has_biases, hx, Tensor(), static_cast<int64_t>(kind), num_layers,
        /*batch_first=*/false, dropout, train, bidirectional, lengths(batch_sizes));
    return {out, last};
  }
  const Operands of = operands_of(data, hx, params, train);
  return run_single_state(kind, {of.data, batch_sizes}, of.states[0], of.params, has_biases,
                          {num_layers, dropout, train, bidirectional});
}

void check_lstm_states(TensorList hx, const Options& options) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  const int64_t expected = options.layers * (options.bidirectional ? 2 : 1);
  for (const auto& [state, name] : {std::pair{hx[0], "h_0"}, std::pair{hx[1], "c_0"}}) {
    TORCH_CHECK(state.dim() == 3, "For batched 3-D input, ", name, " should be 3-D but got ",
                state.dim(), "-D tensor");
    TORCH_CHECK(state.size(0) == expected, "Expected ", name, " size(0) to be ", expected,
                " (num_layers * num_directions), but got ", state.size(0));
  }
}

bool onednn_supports(const char* query) {
  static auto& dispatcher = c10::Dispatcher::singleton();
  return dispatcher.findSchemaOrThrow(query, "").typed<bool()>().call();
}

// The condition under which the CPU's lstm gives whole layers to oneDNN.
bool uses_onednn_layers(const Tensor& input) {
  if (!at::globalContext().userEnabledMkldnn() || !at::globalContext().hasMKLDNN()) return false;
  if (input.numel() == 0) return false;
  switch (input.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return onednn_supports("mkldnn::_is_mkldnn_bf16_supported");
    case at::kHalf:
      return !at::GradMode::is_enabled() && onednn_supports("mkldnn::_is_mkldnn_fp16_supported");
    default:
      return false;
  }
}

std::tuple<Tensor, Tensor, Tensor> run_lstm(const Sequence& sequence, TensorList hx,
                                            TensorList params, bool has_biases,
                                            const Options& options) {
  const auto weights = gather_weights(params, has_biases, hx[0].size(2) != hx[1].size(2));
  const std::vector<Tensor> hidden = hx[0].unbind(0), cell = hx[1].unbind(0);
  std::vector<State> states;
  for (std::size_t i = 0; i < hidden.size(); ++i) states.push_back({hidden[i], cell[i]});
  StackResult result = run_layers(Kind::lstm, sequence, states, weights, options);
  return {std::move(result.output), at::stack(result.hidden, 0), at::stack(result.cell, 0)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_padded(const Tensor& sequence, TensorList initial,
                                               TensorList weights_of_all, bool has_biases,
                                               int64_t num_layers, double dropout, bool train,
                                               bool bidirectional, bool batch_first) {
  const Options options{num_layers, dropout, train, bidirectional};
  check_lstm_states(initial, options);
  at::native::check_attributes(sequence, weights_of_all, initial, /*check_dtype=*/false);
  if (dry_cudnn_takes(sequence)) {
    return dry_cudnn_rnn(sequence, weights_of_all, has_biases, initial[0], initial[1],
                         static_cast<int64_t>(Kind::lstm), num_layers, batch_first, dropout, train,
                         bidirectional);
  }
  const auto [input, hx, params] = operands_of(sequence, initial, weights_of_all, train);
  const bool has_projections = hx[0].size(2) != hx[1].size(2);
  if (!has_projections && uses_onednn_layers(input)) {
    const auto weights = gather_weights(params, has_biases, /*has_projections=*/false);
    TORCH_CHECK(weights.size() == static_cast<std::size_t>(hx[0].size(0)), "Expected weights for ",
                hx[0].size(0), " layers and directions, but got ", weights.size());
    // torch's loop over layers and directions, on device tensors: it only calls operators, and
    // mkldnn_rnn_layer comes back to us (onednn_rnn.cpp).
    Tensor output, hy, cy;
    at::native::lstm_mkldnn_stub(c10::DeviceType::CPU, output, hy, cy, input, hx, params,
                                 has_biases, num_layers, dropout, train, bidirectional,
                                 batch_first);
    return {std::move(output), std::move(hy), std::move(cy)};
  }
  const Tensor by_time = batch_first ? input.transpose(0, 1) : input;
  auto [output, hy, cy] = run_lstm({by_time, std::nullopt}, hx, params, has_biases, options);
  return {batch_first ? output.transpose(0, 1) : output, hy, cy};
}

std::tuple<Tensor, Tensor, Tensor> lstm_packed(const Tensor& data, const Tensor& batch_sizes,
                                               TensorList hx, TensorList params, bool has_biases,
                                               int64_t num_layers, double dropout, bool train,
                                               bool bidirectional) {
  const Options options{num_layers, dropout, train, bidirectional};
  check_lstm_states(hx, options);
  if (dry_cudnn_takes(data)) {
    return dry_cudnn_rnn(data, params, has_biases, hx[0], hx[1], static_cast<int64_t>(Kind::lstm),
                         num_layers, /*batch_first=*/false, dropout, train, bidirectional,
                         lengths(batch_sizes));
  }
  const Operands of = operands_of(data, hx, params, train);
  return run_lstm({of.data, batch_sizes}, of.states, of.params, has_biases, options);
}

void check_cell(const Tensor& input, TensorList states, const Weights& w, int64_t gates) {
  const int64_t hidden_size = w.hidden.size(1);
  TORCH_CHECK(input.size(1) == w.input.size(1), "input has inconsistent input_size: got ",
              input.size(1), " expected ", w.input.size(1));
  for (const auto& [weight, name] :
       {std::pair{w.input, "weight_ih"}, std::pair{w.hidden, "weight_hh"}}) {
    TORCH_CHECK(weight.size(0) == gates * hidden_size, name, " first dim must be ", gates,
                " * hidden_size = ", gates * hidden_size, ", but got ", weight.size(0));
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    TORCH_CHECK(input.size(0) == states[i].size(0), "Input batch size ", input.size(0),
                " doesn't match hidden", i, " batch size ", states[i].size(0));
    TORCH_CHECK(states[i].size(1) == hidden_size, "hidden", i,
                " has inconsistent hidden_size: got ", states[i].size(1), ", expected ",
                hidden_size);
  }
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor& input, TensorList hx, const Tensor& w_ih,
                                     const Tensor& w_hh, const std::optional<Tensor>& b_ih,
                                     const std::optional<Tensor>& b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  const Weights w{w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), Tensor()};
  check_cell(input, hx, w, 4);
  const State state{hx[0], hx[1]};
  const Tensor gates = hidden_gates(state, w);
  State next = lstm_step(gates.add_(input_gates(input, w)), state, w);
  return {std::move(next.hidden), std::move(next.cell)};
}

Tensor gru_cell(const Tensor& input, const Tensor& hx, const Tensor& w_ih, const Tensor& w_hh,
                const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  const Weights w{w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), Tensor()};
  check_cell(input, {hx}, w, 3);
  return gru_step(input_gates(input, w), {hx, Tensor()}, w).hidden;
}

void register_all(torch::Library& m) {
  m.impl("lstm.input", &lstm_padded);
  m.impl("lstm.data", &lstm_packed);
  m.impl("gru.input", &rnn_padded<Kind::gru>);
  m.impl("gru.data", &rnn_packed<Kind::gru>);
  m.impl("rnn_tanh.input", &rnn_padded<Kind::tanh>);
  m.impl("rnn_tanh.data", &rnn_packed<Kind::tanh>);
  m.impl("rnn_relu.input", &rnn_padded<Kind::relu>);
  m.impl("rnn_relu.data", &rnn_packed<Kind::relu>);
  m.impl("lstm_cell", &lstm_cell);
  m.impl("gru_cell", &gru_cell);
}

}  // namespace

// Both keys: composites differentiate through the operators that they call.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_all(m); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_all(m); }

}  // namespace torch_npusim
