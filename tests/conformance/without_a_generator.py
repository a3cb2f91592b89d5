# SPDX-License-Identifier: BSD-3-Clause
"""npusim as it would be if it left Inductor alone."""

import torch_npusim  # noqa: F401
from torch_npusim import _after_import

del _after_import._waiting["torch._inductor.compile_fx"]
