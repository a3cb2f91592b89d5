# SPDX-License-Identifier: BSD-3-Clause
"""The C++ source of a fused kernel: Inductor's loops as the body of one command of the device.

The wrapper gets user addresses and, last, the address of the device's launcher; it hands the loops
the addresses for kernels. The loops themselves are not changed.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import sympy
import torch
from torch._inductor.codegen import cpp
from torch._inductor.codegen.cpp_utils import cexpr
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

import torch_npusim
from torch_npusim._names import is_npusim
from torch_npusim.inductor.account import Access, Account, Pointer

# Inductor's binding, which follows the source, makes a RuntimeError of whatever a kernel throws. An
# error that the launcher has set (a lost device, a race) keeps its type.
_KEEP_PYTHON_ERRORS = """
#include <Python.h>
static inline void npusim_set_error(PyObject* type, const char* text) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(type, text);
}
#define PyErr_SetString npusim_set_error
"""

_PREFIX = "#include <torch/csrc/inductor/cpp_prefix.h>"

_PRECISIONS = {
    torch.float32: "f32",
    torch.complex64: "f32",
    torch.float64: "f64",
    torch.complex128: "f64",
    torch.float16: "f16",
    torch.bfloat16: "f16",
    torch.int8: "i8",
    torch.uint8: "i8",
}


@functools.cache
def launcher_header() -> str:
    """The text of <torch_npusim/launcher.h>, so that kernels need no include path and no file."""
    folder = Path(torch_npusim.__file__).parent / "include" / "torch_npusim"
    text = (folder / "launcher.h").read_text()
    return text.replace("#pragma once\n", "")


def wrapped(
    loops: str,
    of_loops: list[str],
    definitions: list[str],
    pointers: Iterable[Pointer],
    account: Account,
    size_argument: dict[sympy.Symbol, str],
) -> str:
    """Returns the source of a kernel.

    Args:
        loops: Text of CppScheduling: includes, and one function.
        of_loops: The function's parameters, such as "const float* in_ptr0".
        definitions: The kernel's parameters: the same, and sizes that only `account` has.
        pointers: The pointers among them.
        account: Its work.
        size_argument: The names in the kernel of the symbols of `account`.
    """
    on_device = {pointer.name for pointer in pointers if is_npusim(pointer.device)}
    names = [definition.split()[-1].lstrip("*") for definition in of_loops]
    addresses = "".join(
        f"  auto* const host_{name} = npusim_on.kernel_address({name});\n"
        for name in names
        if name in on_device
    )
    passed = ", ".join(f"host_{name}" if name in on_device else name for name in names)
    body = (
        loops.replace(str(Placeholder.KERNEL_NAME), "npusim_loops")
        .replace(str(Placeholder.DESCRIPTIVE_NAME), "npusim_loops")
        .replace("#pragma CMT", "//")
        .replace(f'extern "C" {cpp.get_export_declaration()} void', "static void", 1)
        .replace(_PREFIX, f"{_PREFIX}\n{launcher_header()}", 1)
    )

    def number(expression: sympy.Expr) -> str:
        return str(cexpr(V.graph.sizevars.simplify(expression).xreplace(symbols)))

    symbols = {symbol: sympy.Symbol(name, integer=True) for symbol, name in size_argument.items()}
    operands = account.accesses
    described = _operands(operands, number)
    precision = _PRECISIONS.get(account.dtype, "other")
    parameters = ", ".join([*definitions, "uintptr_t npusim_launcher"])
    return f"""{body}
extern "C" {cpp.get_export_declaration()} void kernel({parameters}) {{
  const auto& npusim_on = *reinterpret_cast<const torch_npusim::DeviceLauncher*>(npusim_launcher);
{addresses}{described}  npusim_on.launch(
      {{"{Placeholder.KERNEL_NAME!s}", static_cast<double>({number(account.bytes)}),
       static_cast<double>({number(account.flops)}), torch_npusim::DevicePrecision::{precision},
       {"npusim_operands" if operands else "nullptr"}, {len(operands)}}},
      [=] {{ npusim_loops({passed}); }});
}}
{_KEEP_PYTHON_ERRORS}"""


def _operands(operands: Iterable[Access], number: Callable[[sympy.Expr], str]) -> str:
    lines, rows = [], []
    for i, access in enumerate(operands):
        for what, values in (("sizes", access.sizes), ("strides", access.strides)):
            listed = ", ".join(f"static_cast<int64_t>({number(value)})" for value in values) or "1"
            lines.append(f"  const int64_t npusim_{what}{i}[] = {{{listed}}};\n")
        offset = number(access.offset)
        kind = str(access.dtype).removeprefix("torch.")
        rows.append(
            f'      {{{access.pointer} + {offset}, "{kind}", sizeof(*{access.pointer}), '
            f"{str(access.written).lower()}, {len(access.sizes)}, npusim_sizes{i}, "
            f"npusim_strides{i}}},\n"
        )
    if not rows:
        return ""
    return (
        "".join(lines)
        + "  const torch_npusim::DeviceOperand npusim_operands[] = {\n"
        + "".join(rows)
        + "  };\n"
    )
