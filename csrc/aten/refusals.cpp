// SPDX-License-Identifier: BSD-3-Clause
// Operators that npusim refuses by name, with what to do instead: docs/reference/exclusions.md has
// the list. Without a kernel here they would read device memory on the host, or end in torch's own
// errors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_npusim {

namespace {

constexpr char kMkldnnLayout[] =
    "the MKLDNN layout exists on the CPU only. Move the tensor with .cpu() first.";
constexpr char kPackedMatrix[] =
    "packed matrices exist on the CPU only, and so do their products. Move the tensors with .cpu() "
    "first.";

template <const char* reason>
[[noreturn]] void refuse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": ", reason);
}

template <const char* reason>
torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse<reason>>();
}

void refuse_all(torch::Library& m) {
  m.impl("to_mkldnn", refusal<kMkldnnLayout>());
  for (const char* name :
       {"_wrapped_linear_prepack", "_wrapped_quantized_linear_prepacked",
        "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight.out",
        "fbgemm_linear_fp16_weight_fp32_activation",
        "fbgemm_linear_fp16_weight_fp32_activation.out", "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation", "fbgemm_linear_quantize_weight",
        "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix",
        "fbgemm_pack_quantized_matrix.KN", "quantized_gru_cell", "quantized_lstm_cell",
        "quantized_rnn_relu_cell", "quantized_rnn_tanh_cell"}) {
    m.impl(name, refusal<kPackedMatrix>());
  }
}

}  // namespace

// All keys: a quantized tensor would pass by a refusal of dense ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { refuse_all(m); }
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { refuse_all(m); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { refuse_all(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { refuse_all(m); }

}  // namespace torch_npusim
