# SPDX-License-Identifier: BSD-3-Clause
"""The kernels that ran, seen by kernels in front of them: each notes its operator and key.

An operator's kernels under the keys of a chain are replaced, for a while, by Python functions
that call them. Nothing is derived here: a redispatch that comes by is seen.
"""

import warnings
from contextlib import contextmanager

import torch

KEYS = (
    "AutogradCPU", "AutogradPrivateUse1", "AutogradOther", "ADInplaceOrView", "BackendSelect",
    "Conjugate", "Negative", "ZeroTensor", "CPU", "PrivateUse1", "SparsePrivateUse1",
    "SparseCsrPrivateUse1", "SparseCPU", "SparseCsrCPU", "AutocastPrivateUse1",
)  # fmt: skip


PLAIN = int | float | complex


class Seen(list):
    """The hops that were seen; none while it is paused.

    `numbers` are the operators that took a number where a tensor is due. The number is no longer
    marked as one when it goes on, and npusim may take another route for it.
    """

    paused = False

    def __init__(self):
        super().__init__()
        self.numbers = set()

    def tensor(self, number):
        """Returns a number as a tensor."""
        self.paused = True
        try:
            return torch.tensor(number)
        finally:
            self.paused = False


def _split(name):
    base, _, overload = name.partition(".")
    return base, overload


@contextmanager
def seen(names):
    """Yields a list of (operator, key), in the order in which kernels ran."""
    found = Seen()
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted({name for name in names if name.startswith("aten::")}):
            table = torch._C._dispatch_dump_table(name).splitlines()
            runs = {row.partition(":")[0] for row in table if ": fallthrough" not in row}
            kernels = {
                key: torch._C._dispatch_get_computed_kernel_for_dispatch_key(
                    name, torch._C._dispatch_key_parse(key)
                )
                for key in KEYS
                if key in runs
            }
            for key, kernel in kernels.items():
                front = _front(found, name, key, kernel)
                library.impl(name.removeprefix("aten::"), front, key, with_keyset=True,
                             allow_override=True)  # fmt: skip
        try:
            yield found
        finally:
            library._destroy()


def _front(found, name, key, kernel):
    schema = torch._C._get_schema(*_split(name))
    tensors = {i for i, one in enumerate(schema.arguments) if "Tensor" in str(one.type)}

    def front(keys, *args, **kwargs):
        if found.paused:
            return kernel.call_boxed(keys, *args, **kwargs)
        found.append((name, key))
        # A tensor that stands for a number arrives as that number.
        numbers = {i for i in tensors if i < len(args) and isinstance(args[i], PLAIN)}
        if numbers:
            found.numbers.add(name)
            args = [found.tensor(one) if i in numbers else one for i, one in enumerate(args)]
        return kernel.call_boxed(keys, *args, **kwargs)

    return front
