# SPDX-License-Identifier: BSD-3-Clause
"""Solutions of the puzzles, and for each puzzle misconceptions with a part of their failure's text.

Readers of the course: try first; npusim_course.hint("views-1") helps.
"""

import torch
from course.more_solutions import MORE
from course.parallel_solutions import PARALLEL
from course.product_solutions import PRODUCT
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def column_major(shape):
    strides, step = [], 1
    for size in shape:
        strides.append(step)
        step *= size
    return tuple(strides)


def sectors_of_a_column(rows, columns, item):
    return len({row * columns * item // 32 for row in range(rows)})


def first_key(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return device if inference else f"Autograd{device}"


def key_by_requires_grad(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return f"Autograd{device}" if x.requires_grad else device


def key_by_grad_mode(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return f"Autograd{device}" if torch.is_grad_enabled() else device


def key_without_inference_mode(x, inference):
    return first_key(x, False)


def registered(key):
    return lambda library: library.impl("scale", lambda x, by: x * by, key)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


class Ones(Straight):
    @staticmethod
    def backward(context, gradient):
        return torch.ones_like(gradient)


class Rounded(Straight):
    @staticmethod
    def backward(context, gradient):
        return gradient.round()


class Limited(Straight):
    @staticmethod
    def backward(context, gradient):
        return gradient.clamp(-1, 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x, by):
        return x * by

    @staticmethod
    def backward(context, gradient):
        return gradient, None


def overwritten(x):
    with torch.no_grad():
        x.copy_(x.round())
    return x


def mended(x):
    return ((x.exp() + 1) ** 2).sum()


def under_no_grad(x):
    y = x.exp()
    with torch.no_grad():
        y.add_(1)
    return (y**2).sum()


def through_detach(x):
    y = x.exp()
    y.detach().add_(1)
    return (y**2).sum()


def by_data(x):
    y = x.exp()
    y.data.add_(1)
    return (y**2).sum()


def detached(x):
    y = x.exp().detach()
    y.add_(1)
    return (y**2).sum()


def rounded(quantum):
    return lambda requests: sum(-(-size // quantum) * quantum for size in requests)


def best_fit(blocks, size):
    fitting = [(length, place) for place, length in enumerate(blocks) if length >= size]
    return min(fitting)[1] if fitting else None


def first_fit(blocks, size):
    return next((place for place, length in enumerate(blocks) if length >= size), None)


def last_of_equals(blocks, size):
    fitting = [(length, -place) for place, length in enumerate(blocks) if length >= size]
    return -min(fitting)[1] if fitting else None


def smallest(blocks, size):
    return blocks.index(min(blocks))


def exact(blocks, size):
    return blocks.index(size) if size in blocks else None


def segment(size):
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def windows(x):
    return x.as_strided((len(x) - 2, 3), (x.stride(0), x.stride(0)), x.storage_offset())


SHARED = {
    "x[0]": (True, True),
    "x.detach()": (True, True),
    "x.data": (True, False),
    "x.clone()": (False, False),
    "x.t().reshape(-1)": (False, False),
    "x.reshape(-1)": (True, True),
}


def shared_but(made, told):
    """All is right but the answer for one way of making a tensor."""
    return lambda one: (SHARED | {made: told})[one]


def halved(w):
    with torch.no_grad():
        w[0].mul_(0.5)


def into(x, y, out):
    torch.mul(x, y, out=out)
    torch.add(out, x, out=out)
    torch.sin(out, out=out)


def into_the_operand(x, y, out):
    out.copy_(x.mul_(y).add_(x).sin_())


def rebound(x, y, out):
    out = torch.sin(x * y + x)  # noqa: F841


def two_blocks(elements, operators):
    return min(operators, 2) * rounded(32)([4 * elements])


def squared(decides):
    return lambda w, buffer: w * w if decides(w) else torch.mul(w.detach(), w.detach(), out=buffer)


def kept_tensors(layers, segments):
    return segments - 1 + layers - (segments - 1) * (layers // segments)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(context, function, x):
        context.function = function
        context.state = torch.get_rng_state(), torch.npusim.get_rng_state()
        context.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(context, gradient):
        with torch.random.fork_rng(devices=[0], device_type="npusim"):
            return None, again(context, gradient)


class CheckpointThatMovesTheGenerator(Checkpoint):
    @staticmethod
    def backward(context, gradient):
        return None, again(context, gradient)


def again(context, gradient):
    torch.set_rng_state(context.state[0])
    torch.npusim.set_rng_state(context.state[1])
    x = context.saved_tensors[0].detach().requires_grad_()
    with torch.enable_grad():
        y = context.function(x)
    return torch.autograd.grad(y, x, gradient)[0]


def another_mask(function, x):
    return checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)


def ordered(x, side):
    current = torch.npusim.current_stream()
    side.wait_stream(current)
    with torch.npusim.stream(side):
        x.fill_(1.0)
    current.wait_stream(side)
    return x.sum()


def the_wrong_way_round(x, side):
    current = torch.npusim.current_stream()
    side.wait_stream(current)
    with torch.npusim.stream(side):
        x.fill_(1.0)
    side.wait_stream(current)
    return x.sum()


def too_early(x, side):
    current = torch.npusim.current_stream()
    side.wait_stream(current)
    current.wait_stream(side)
    with torch.npusim.stream(side):
        x.fill_(1.0)
    return x.sum()


def without_the_first_wait(x, side):
    with torch.npusim.stream(side):
        x.fill_(1.0)
    torch.npusim.current_stream().wait_stream(side)
    return x.sum()


def by_the_host(x, side):
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        x.fill_(1.0)
    side.synchronize()
    return x.sum()


def dropped(told, awaits=True):
    """Doubles on the side stream; `told(x, y, side)` is called before x goes."""

    def answer(make, side):
        x = make()
        if awaits:
            side.wait_stream(torch.npusim.current_stream())
        with torch.npusim.stream(side):
            y = x * 2
        told(x, y, side)
        del x
        make()
        return y

    return answer


def downloaded(x, host):
    host.copy_(x, non_blocking=True)
    copied = torch.npusim.Event()
    copied.record()
    copied.synchronize()
    return host.sum().item()


def awaited_before_the_copy(x, host):
    event = torch.npusim.Event()
    event.record()
    host.copy_(x, non_blocking=True)
    event.synchronize()
    return host.sum().item()


def awaited_another_stream(x, host):
    host.copy_(x, non_blocking=True)
    torch.npusim.Stream().synchronize()
    return host.sum().item()


# name: (solution, [(misconception, part of the text of its failure)])
SOLUTIONS = {
    "views-1": (
        contiguous_strides,
        [
            (column_major, "column-major"),
            (lambda shape: tuple(4 * s for s in contiguous_strides(shape)), "not bytes"),
            (lambda shape: (*shape[1:], 1), "product of all sizes"),
        ],
    ),
    "views-2": (
        windows,
        [
            (lambda x: torch.stack([x[i : i + 3] for i in range(len(x) - 2)]), "a copy"),
            (lambda x: x[:6].reshape(2, 3), "windows overlap"),
            (lambda x: x.as_strided((len(x) - 2, 3), (1, 1), 0), "takes an offset"),
            (lambda x: x.as_strided((len(x) - 2, 3), (1, 1)), "lie 2 apart"),
            (lambda x: x.as_strided((len(x) - 2, 3), (x.stride(0), 1)), "lie 2 apart"),
            (lambda x: x.unfold(0, 3, 1).t(), "each row is a window"),
        ],
    ),
    "views-3": (
        sectors_of_a_column,
        [
            (lambda rows, columns, item: rows, "share sectors"),
            (lambda rows, columns, item: -(-rows * item // 32), "not neighbours"),
            (lambda rows, columns, item: -(-rows * columns * item // 32), "other columns"),
            (
                lambda rows, columns, item: min(rows, -(-rows * columns * item // 32)),
                "other columns",
            ),
        ],
    ),
    "sharing-1": (
        SHARED.get,
        [
            (shared_but("x.detach()", (False, False)), "detach() copies nothing"),
            (shared_but("x[0]", (True, False)), "not to one tensor"),
            (shared_but("x.data", (True, True)), "is a new one"),
            (shared_but("x.t().reshape(-1)", (True, True)), "reshape() copies where"),
        ],
    ),
    "sharing-2": (
        lambda x: x.diagonal().zero_(),
        [
            (lambda x: torch.diag(x).zero_(), "diag() always copies"),
            (torch.no_grad()(lambda x: x.diagonal().zero_()), "is in no graph"),
            (lambda x: x.detach().diagonal().zero_(), "is in no graph"),
            (lambda x: x.reshape(-1)[:: len(x) + 1].zero_(), "reshape() where it must"),
            (lambda x: x.data.diagonal().zero_(), "invisible to autograd"),
            (lambda x: x.as_strided((3,), (1,)).zero_(), "counts in the storage"),
        ],
    ),
    "sharing-3": (
        halved,
        [
            (lambda w: w[0].mul_(0.5), "a view of a leaf"),
            (lambda w: w.data[0].mul_(0.5), "raise no counter"),
            (lambda w: w.clone()[0].mul_(0.5), "a copy of it"),
        ],
    ),
    "dispatcher-1": (
        first_key,
        [
            (key_by_requires_grad, "in every tensor's set"),
            (key_by_grad_mode, "no_grad() takes no key away"),
            (key_without_inference_mode, "inference_mode() takes autograd's keys away"),
            (lambda x, inference: "ADInplaceOrView", "stands below autograd"),
            (
                lambda x, inference: f"Autocast{first_key(x, True)}",
                "excludes it while autocast is off",
            ),
        ],
    ),
    "dispatcher-2": (
        registered("CompositeImplicitAutograd"),
        [
            (registered("CompositeExplicitAutograd"), "stands below autograd"),
            (registered("CPU"), "stands below autograd"),
            (registered("PrivateUse1"), "serves that device alone"),
            (registered("Autograd"), "under inference_mode()"),
            (
                lambda library: library.impl("scale", Scaled.apply, "CompositeImplicitAutograd"),
                "not `by` in each place",
            ),
        ],
    ),
    "out-1": (
        into,
        [
            (rebound, "another tensor"),
            (lambda x, y, out: out.copy_(torch.sin(x * y + x)), "3 blocks were allocated"),
            (lambda x, y, out: torch.sin(x * y + x, out=out), "also within an expression"),
            (into_the_operand, "x was overwritten"),
        ],
    ),
    "out-2": (
        two_blocks,
        [
            (lambda elements, operators: operators * rounded(32)([4 * elements]), "do not add up"),
            (lambda elements, operators: rounded(32)([4 * elements]), "live at the same time"),
            (lambda elements, operators: min(operators, 2) * 4 * elements, "multiple of 32"),
        ],
    ),
    "out-3": (
        squared(lambda w: w.requires_grad and torch.is_grad_enabled()),
        [
            (lambda w, buffer: torch.mul(w, w, out=buffer), "out= has no gradient"),
            (squared(lambda w: False), "has cut the graph"),
            (
                lambda w, buffer: (
                    w * w if w.requires_grad and torch.is_grad_enabled() else w.mul_(w)
                ),
                "w was overwritten",
            ),
            (squared(lambda w: w.requires_grad), "under no_grad() no graph"),
            (squared(lambda w: torch.is_grad_enabled()), "of a plain tensor no graph"),
        ],
    ),
    "autograd-1": (
        Straight.apply,
        [
            (lambda x: x.round(), "which is flat"),
            (lambda x: x.detach().round(), "detach() has cut it"),
            (Ones.apply, "not ones"),
            (Rounded.apply, "not rounded"),
            (Limited.apply, "without a limit"),
            (overwritten, "x itself was overwritten"),
        ],
    ),
    "autograd-2": (
        lambda elements: 4 * elements,
        [
            (lambda elements: 8 * elements, "x is a leaf"),
            (lambda elements: 12 * elements, "one storage of a leaf"),
            (lambda elements: 0, "exp saves its result"),
            (lambda elements: elements, "has 4 bytes"),
            (lambda elements: 4 * elements + 4, "its result is not saved"),
            (lambda elements: rounded(32)([4 * elements]), "not those of their blocks"),
        ],
    ),
    "autograd-3": (
        mended,
        [
            (under_no_grad, "sees it under no_grad()"),
            (through_detach, "through detach()"),
            (by_data, "no version counter sees"),
            (detached, "has no graph"),
        ],
    ),
    "checkpointing-1": (
        kept_tensors,
        [
            (lambda layers, segments: layers, "nothing is kept but its input"),
            (lambda layers, segments: segments, "last segment is not checkpointed"),
            (lambda layers, segments: layers // segments, "keep their inputs"),
        ],
    ),
    "checkpointing-2": (
        Checkpoint.apply,
        [
            (lambda function, x: function(x), "activations are still there"),
            (another_mask, "another mask"),
            (CheckpointThatMovesTheGenerator.apply, "has moved the generator"),
        ],
    ),
    "allocator-1": (
        rounded(32),
        [
            (sum, "requests alone are too few"),
            (rounded(512), "CUDA rounds to 512"),
            (lambda requests: -(-sum(requests) // 32) * 32, "not their sum"),
            (lambda requests: sum(size // 32 * 32 + 32 for size in requests), "is not rounded"),
            (
                lambda requests: sum(max(32, rounded(32)([size])) for size in requests),
                "gets no block",
            ),
        ],
    ),
    "allocator-2": (
        best_fit,
        [
            (first_fit, "first block that fits"),
            (smallest, "too small"),
            (exact, "can be split"),
            (last_of_equals, "the first is taken"),
            (lambda blocks, size: best_fit(blocks, size + 1), "of exactly that size"),
            (lambda blocks, size: best_fit(blocks, size) or None, "in Python 0 is false"),
            (lambda blocks, size: min(one for one in blocks if one >= size), "not a size"),
        ],
    ),
    "allocator-3": (
        segment,
        [
            (lambda size: size, "more than one request"),
            (lambda size: 2 * MIB, "a pool of their own"),
            (lambda size: -(-size // (2 * MIB)) * 2 * MIB, "share segments of 20 MiB"),
            (lambda size: 2 * MIB if size <= MIB else 20 * MIB, "From 10 MiB on"),
            (lambda size: segment(size + 1), "still a small one"),
        ],
    ),
    "races-1": (
        ordered,
        [
            (the_wrong_way_round, "name the sum's stream first"),
            (too_early, "after fill_()"),
            (without_the_first_wait, "does not wait for the zeros"),
            (by_the_host, "stops the host"),
        ],
    ),
    "races-2": (
        dropped(lambda x, y, side: x.record_stream(side)),
        [
            (dropped(lambda x, y, side: y.record_stream(side)), "x is the tensor that goes"),
            (
                dropped(lambda x, y, side: x.record_stream(torch.npusim.current_stream())),
                "does not know of",
            ),
            (dropped(lambda x, y, side: x.record_stream(side), False), "that has made x"),
        ],
    ),
    "races-3": (
        downloaded,
        [
            (awaited_before_the_copy, "launched before its record()"),
            (awaited_another_stream, "before the copy is known"),
            (lambda x, host: x.cpu().sum().item(), "another tensor, pageable"),
        ],
    ),
    **MORE,
    **PARALLEL,
    **PRODUCT,
}
