// SPDX-License-Identifier: BSD-3-Clause
// What kind of quantizer a tensor has. Its qscheme() cannot be asked: that of a tensor without
// parameters yet, as torch.empty(dtype=torch.qint8) makes one, raises.
#pragma once

#include <ATen/quantized/Quantizer.h>

namespace torch_npusim {

// The quantizer with tensors of scales and zero points, or null for any other.
inline const at::PerChannelAffineQuantizer* per_channel_or_null(const at::QuantizerPtr& quantizer) {
  return dynamic_cast<const at::PerChannelAffineQuantizer*>(quantizer.get());
}

}  // namespace torch_npusim
