# SPDX-License-Identifier: BSD-3-Clause
"""pytest plugin (-p without_vision_ops): torchvision without its C++ operators.

The registry's torchvision is built for CUDA's torch. Beside CPU's torch its C++ operators cannot be
loaded, and its import fails where it describes two of them; with their names known it succeeds.
"""

import torch

torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
