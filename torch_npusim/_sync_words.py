# SPDX-License-Identifier: BSD-3-Clause
"""What a wait of the host is called in words, and which waits the program asked for.

The operators' own names are what patterns of allow() and of npusim_sync_allow match; what people
read is the call as they wrote it, what it waits for, and what does without.
"""

import os
from types import FrameType

import torch

_VALUE = (
    ".item(), or bool(), int(), float(), `if` or `in` of a tensor, waits for a value; keep it on "
    "the device, or look at it less often"
)
_CHOSEN = (
    "waits for the number of elements that the mask chooses; torch.where(mask, x, other), or a "
    "product with the mask, needs none"
)
_FACTOR = "waits to learn whether the decomposition succeeded; its _ex form does not"
_SIZE = "waits for values that decide the size of its result"

# By the operator's name without its overload.
_WORDS = {
    "aten::_local_scalar_dense": _VALUE,
    "aten::item": _VALUE,
    "aten::index": f"x[mask], or indices on the host: {_CHOSEN}",
    "aten::_index_put_impl_": f"x[mask] = values, or indices on the host: {_CHOSEN}",
    "aten::masked_select": f"masked_select() {_CHOSEN}",
    "aten::nonzero": "nonzero(), where(mask) or x[mask] "
    "waits for the number of elements; nonzero_static(size=n) does not",
    "aten::_unique2": f"unique() {_SIZE}",
    "aten::unique_dim": f"unique() {_SIZE}",
    "aten::unique_consecutive": f"unique_consecutive() {_SIZE}",
    "aten::repeat_interleave": "repeat_interleave() waits for the sum of the repeats; pass "
    "output_size",
    "aten::bincount": "bincount() waits for the largest value",
    "aten::equal": "torch.equal() waits for its answer",
    "aten::linalg_inv_ex": f"linalg.inv() {_FACTOR}",
    "aten::linalg_eig": f"linalg.eig() {_FACTOR}",
    "aten::_linalg_eigh": f"linalg.eigh() {_FACTOR}",
    "aten::_linalg_svd": f"linalg.svd() {_FACTOR}",
    **dict.fromkeys(
        ("aten::_to_sparse", *(f"aten::_to_sparse_{it}" for it in ("csr", "csc", "bsr", "bsc"))),
        "to_sparse() waits for the number of elements that are not zero",
    ),
    "aten::copy_ to the host": ".cpu(), .to('cpu') or .tolist() waits for the values",
    "aten::copy_ to the device": "a copy from the host (.to(device), torch.tensor(..., device=)) "
    "waits; pin_memory() and non_blocking=True do not",
    "aten::copy_ to pageable memory": "non_blocking=True to memory that is not pinned may wait all "
    "the same; copy into a pinned tensor",
    "aten::copy_ from pageable memory": "non_blocking=True from memory that is not pinned may wait "
    "all the same; pin_memory() first",
    "printing": "printing a tensor waits for its values",
    "Stream.synchronize": "Stream.synchronize() waits for the stream",
    "Event.synchronize": "Event.synchronize() waits for the event",
    "synchronize": "synchronize() waits for the device",
}

#: Copies that are not to block: CUDA's mode does not report them, whatever memory they use.
PAGEABLE = frozenset({"aten::copy_ to pageable memory", "aten::copy_ from pageable memory"})

# Waits that a program asks for in so many words.
_ASKED = frozenset({"aten::copy_ to the host", "Stream.synchronize"})

# Functions of torch that move weights, or whose job it is to look at gradients: file -> names.
_TORCH = os.path.dirname(torch.__file__)
_WITHIN = (_TORCH + os.sep, os.path.dirname(__file__) + os.sep)
_ASKING = {
    os.path.join(_TORCH, "nn", "modules", "module.py"): frozenset(
        {"_apply", "to", "cuda", "cpu", "load_state_dict", "_load_from_state_dict", "to_empty"}
    ),
    os.path.join(_TORCH, "amp", "grad_scaler.py"): frozenset(
        {"step", "update", "unscale_", "_maybe_opt_step", "load_state_dict"}
    ),
    os.path.join(_TORCH, "optim", "optimizer.py"): frozenset({"load_state_dict"}),
    os.path.join(_TORCH, "serialization.py"): frozenset({"load", "save"}),
}


# Functions of any library that load weights. Copies to the device below them were asked for.
_LOADING = frozenset(
    {"from_pretrained", "load_state_dict", "load_checkpoint", "load_checkpoint_and_dispatch"}
)


def in_words(what: str) -> str:
    """Returns what the program does there, why it waits and what would not."""
    words = _WORDS.get(what) or _WORDS.get(what.partition(".")[0])
    return f"{words} ({what})" if words is not None else f"{what} waits for values"


def is_asked_for(what: str, frame: FrameType | None) -> bool:
    """Returns whether the program asked for a wait: by its name, or of torch's functions that load.

    Args:
        what: What waits.
        frame: The frame that does. A function of torch's is looked for up to the first frame
            outside torch and this package, one that loads weights among all.
    """
    if what in _ASKED or (what == "aten::copy_ to the device" and _is_loading(frame)):
        return True
    while frame is not None and frame.f_code.co_filename.startswith(_WITHIN):
        if frame.f_code.co_name in _ASKING.get(frame.f_code.co_filename, ()):
            return True
        frame = frame.f_back
    return False


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _LOADING:
            return True
        frame = frame.f_back
    return False
