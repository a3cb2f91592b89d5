# SPDX-License-Identifier: BSD-3-Clause
"""Processes that tensors are sent to and from: each runs what it is told, and every wait ends."""

import contextlib
import gc
import traceback

import rank_processes
import torch

LIMIT = 240  # seconds for any single answer; the machine may be busy


class PartnerError(AssertionError):
    """The other process raised; the text is its traceback."""


def _serve(pipe):
    torch.set_num_threads(1)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        except Exception as problem:
            pipe.send(("error", type(problem).__name__, str(problem)))
            continue
        function, arguments = request
        del request
        try:
            answer = function(*arguments)
            del arguments
            pipe.send(("answer", answer))
            del answer
        except Exception:
            pipe.send(("error", "raised", traceback.format_exc()))
        gc.collect()


class Partner:
    """A process at the other end of a pipe."""

    def __init__(self, context):
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def tell(self, function, *arguments):
        self.pipe.send((function, arguments))

    def answer(self):
        if not self.pipe.poll(LIMIT):
            raise PartnerError(f"no answer within {LIMIT} s")
        kind, *rest = self.pipe.recv()
        if kind == "error":
            raise PartnerError(": ".join(rest))
        return rest[0]

    def call(self, function, *arguments):
        """The result of `function(*arguments)` there."""
        self.tell(function, *arguments)
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.join(LIMIT)
        self.pipe.close()


@contextlib.contextmanager
def partner():
    made = Partner(rank_processes.context())
    try:
        yield made
    finally:
        made.kill()


# --- what partners are told

kept = {}


def keep(name, value):
    kept[name] = value


def drop(*names):
    for name in names or list(kept):
        del kept[name]
    gc.collect()


def fill(name, value):
    kept[name].fill_(value)
    torch.npusim.synchronize()


def same_storage(*names):
    return len({kept[name].untyped_storage()._cdata for name in names}) == 1


def describe(tensor):
    return {
        "type": type(tensor).__name__,
        "device": str(tensor.device),
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "requires_grad": tensor.requires_grad,
        "values": tensor.detach().cpu(),
    }
