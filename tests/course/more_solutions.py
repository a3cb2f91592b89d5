# SPDX-License-Identifier: BSD-3-Clause
"""Further solutions and misconceptions, as in solutions.py."""

import itertools

import torch

from torch_npusim import inside


def sectors_of_a_read(offset, elements, item):
    return (offset * item + elements * item - 1) // 32 - offset * item // 32 + 1


def rows_padded_to(floats):
    def answer(rows, columns):
        wide = torch.zeros(rows, -(-columns // floats) * floats, device="npusim")
        return wide[:, :columns]

    return answer


class Chain(torch.nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in pairs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return x


class ChainThatReplacesItsCount(Chain):
    def forward(self, x):
        self.calls = torch.tensor(self.calls.item() + 1)
        for layer in self.layers:
            x = layer(x)
        return x


class ChainInAList(Chain):
    def __init__(self, widths):
        super().__init__(widths)
        layers = list(self.layers)
        del self.layers
        self.layers = layers


def chain_that_counts_in(make):
    """A chain whose counter is made otherwise."""

    def answer(widths):
        net = Chain(widths)
        del net.calls
        make(net)
        return net

    return answer


def copied(net):
    return {name: one.clone() for name, one in net.state_dict().items()}


def grouped(decays):
    """AdamW with two groups; `decays(name, parameter)` says which decay."""

    def answer(net):
        named = list(net.named_parameters())
        yes = [one for name, one in named if decays(name, one)]
        no = [one for name, one in named if not decays(name, one)]
        return torch.optim.AdamW(
            [{"params": yes, "weight_decay": 0.1}, {"params": no, "weight_decay": 0.0}]
        )

    return answer


def in_both(net):
    plain = [one for one in net.parameters() if one.ndim < 2]
    return torch.optim.AdamW(
        [{"params": net.parameters()}, {"params": plain, "weight_decay": 0.0}], weight_decay=0.1
    )


def matrices_alone(net):
    return torch.optim.AdamW([one for one in net.parameters() if one.ndim == 2], weight_decay=0.1)


def first_of(order):
    return lambda keys: min(keys, key=lambda key: order.index(plain(key)))


def fault(name):
    found = inside.registration(name)
    (operator,) = found.operators
    if any(one.inactive for one in operator.registrations):
        return "replaced"
    if not operator.schema:
        return "undefined"
    keys = {one.key for one in operator.registrations}
    if keys == {"CUDA"}:
        return "elsewhere"
    return "no gradient" if found.problems else "fine"


def plain(key):
    """The functionality of a key: that of a backend is "Dense"."""
    for backend in ("CPU", "PrivateUse1"):
        key = key.removesuffix(backend)
    return key or "Dense"


PRIORITIES = ["FuncTorchBatched", "Autocast", "Autograd", "ADInplaceOrView", "Python",
              "BackendSelect", "Dense"]  # fmt: skip


def broadcast(one, other):
    made = []
    for pair in itertools.zip_longest(reversed(one), reversed(other), fillvalue=1):
        if 1 not in pair and pair[0] != pair[1]:
            return None
        made.append(pair[0] if pair[1] == 1 else pair[1])
    return tuple(reversed(made))


def from_the_left(one, other):
    length = max(len(one), len(other))
    return broadcast(*(shape + (1,) * (length - len(shape)) for shape in (one, other)))


def largest(one, other):
    pairs = itertools.zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(reversed([max(pair) for pair in pairs]))


def compilations(sizes, dynamic):
    special = len({size for size in sizes if size == 1})
    plain = len({size for size in sizes if size != 1})
    return special + {None: min(2, plain), True: 1, False: plain}[dynamic]


def end_of(durations, launch_ns):
    end = 0
    for number, duration in enumerate(durations, 1):
        end = max(end, number * launch_ns) + duration
    return end


def quicker(operations, bytes, peak, bandwidth, faster):
    arithmetic, memory = operations / peak, bytes / bandwidth
    return max(arithmetic, memory) / max(arithmetic / faster, memory)


def quicker_by_sum(operations, bytes, peak, bandwidth, faster):
    arithmetic, memory = operations / peak, bytes / bandwidth
    return (arithmetic + memory) / (arithmetic / faster + memory)


def film_of(velocity_first=True, keep=lambda one: one, collect=torch.stack):
    def answer(constants, steps):
        stiffness, friction = constants
        x, v = torch.ones_like(stiffness), torch.zeros_like(stiffness)
        film = []
        for _ in range(steps):
            x, v = keep(x), keep(v)
            before = v
            v = v - 0.1 * (stiffness * x + friction * v)
            x = x + 0.1 * (v if velocity_first else before)
            film.append(x)
        return collect(film)

    return answer


def bounced(x, v, floor):
    below = x < floor
    return torch.where(below, 2 * floor - x, x), torch.where(below, -v, v)


def central(step):
    def answer(function, x):
        h = step(x)
        return (function(x + h) - function(x - h)) / (2 * h)

    return answer


def one_sided(function, x):
    h = 0.01 * max(1, abs(x))
    return (function(x + h) - function(x)) / h


# name: (solution, [(misconception, part of the text of its failure)])
MORE = {
    "alignment-1": (
        lambda size, boundary: -(-size // boundary) * boundary,
        [
            (lambda size, boundary: size // boundary * boundary, "boundary below"),
            (lambda size, boundary: size + boundary - size % boundary, "needs no padding"),
            (lambda size, boundary: (size + boundary - 1) & -boundary, "powers of two"),
        ],
    ),
    "alignment-2": (
        sectors_of_a_read,
        [
            (lambda offset, elements, item: -(-elements * item // 32), "middle of a sector"),
            (lambda offset, elements, item: -(-elements * item // 32) + 1, "no sector more"),
            (
                lambda offset, elements, item: (
                    (offset + elements * item - 1) // 32 - offset // 32 + 1
                ),
                "not bytes",
            ),
            (
                lambda offset, elements, item: -(-(offset + elements) * item // 32),
                "are not touched",
            ),
        ],
    ),
    "alignment-3": (
        rows_padded_to(8),
        [
            (lambda rows, columns: rows_padded_to(8)(rows, columns).contiguous(), "are packed"),
            (lambda rows, columns: torch.zeros(rows, 8, device="npusim"), "the shape has none"),
            (rows_padded_to(32), "eight floats fill"),
            (
                lambda rows, columns: torch.empty(rows, -(-columns // 8) * 8, device="npusim")[
                    :, :columns
                ],
                "zeros on npusim",
            ),
            (
                lambda rows, columns: torch.zeros(rows, (columns // 8 + 1) * 8, device="npusim")[
                    :, :columns
                ],
                "eight floats fill",
            ),
        ],
    ),
    "dispatcher-3": (
        first_of(PRIORITIES),
        [
            (lambda keys: keys[0], "says nothing"),
            (first_of(["Dense", *PRIORITIES[:-1]]), "its key comes last"),
            (first_of(["Autograd", *PRIORITIES]), "Autograd stands below autocast"),
            (first_of(["Python", *PRIORITIES]), "Python's key stands low"),
        ],
    ),
    "dispatcher-4": (
        fault,
        [
            (lambda name: "fine", "the first never runs"),
            (lambda name: fault(name).replace("undefined", "elsewhere"), "it is misspelt"),
            (lambda name: fault(name).replace("elsewhere", "undefined"), "under CUDA alone"),
            (lambda name: fault(name).replace("no gradient", "replaced"), "the keys differ"),
            (
                lambda name: "no gradient" if fault(name) == "fine" else fault(name),
                "from its parts",
            ),
        ],
    ),
    "modules-1": (
        Chain,
        [
            (ChainInAList, "none in a list"),
            (ChainThatReplacesItsCount, "has its name"),
            (
                chain_that_counts_in(lambda net: setattr(net, "calls", torch.zeros(()))),
                "in no table",
            ),
            (
                chain_that_counts_in(
                    lambda net: setattr(
                        net, "calls", torch.nn.Parameter(torch.zeros(()), requires_grad=False)
                    )
                ),
                "a Parameter is trained",
            ),
            (
                chain_that_counts_in(
                    lambda net: net.register_buffer("calls", torch.zeros(()), persistent=False)
                ),
                "not persistent",
            ),
        ],
    ),
    "modules-2": (
        copied,
        [
            (lambda net: net.state_dict(), "share the module's storages"),
            (
                lambda net: {name: one.cpu() for name, one in net.state_dict().items()},
                "so does .cpu()",
            ),
            (lambda net: dict(net.state_dict()), "share the module's storages"),
            (
                lambda net: {name: one.detach().clone() for name, one in net.named_parameters()},
                "a state has the buffers too",
            ),
        ],
    ),
    "modules-3": (
        grouped(lambda name, one: one.ndim >= 2),
        [
            (lambda net: torch.optim.AdamW(net.parameters(), weight_decay=0.1), "of each group"),
            (grouped(lambda name, one: name.endswith("weight")), "though its name is weight"),
            (in_both, "is in two groups"),
            (matrices_alone, "nothing warns"),
        ],
    ),
    "meta-1": (
        broadcast,
        [
            (from_the_left, "begins at the last dimension"),
            (largest, "only a size of 1"),
            (lambda one, other: one if one == other else None, "need not be equal"),
        ],
    ),
    "meta-2": (
        lambda x: x.new_empty(x.shape[0], dtype=torch.float64),
        [
            (
                lambda x: torch.empty(x.shape[0], dtype=torch.float64),
                "the operand's device",
            ),
            (lambda x: x.new_empty(x.shape[0]), "float64"),
            (lambda x: x.new_empty(x.shape[1], dtype=torch.float64), "not that of each column"),
            (lambda x: torch.tensor([sum(row) for row in x.tolist()]), "has no values"),
        ],
    ),
    "compiler-1": (
        compilations,
        [
            (lambda sizes, dynamic: len(sizes), "Guards held"),
            (lambda sizes, dynamic: 1, "takes its size as a constant"),
            (lambda sizes, dynamic: len(set(sizes)), "which serves the others"),
            (lambda sizes, dynamic: compilations(sizes, None), "knows no symbols"),
            (
                lambda sizes, dynamic: compilations([size for size in sizes if size > 1], dynamic),
                "a symbol stands for 2",
            ),
        ],
    ),
    "compiler-2": (
        lambda x: torch.where(x.sum() > 0, x + 1, x - 1),
        [
            (lambda x: x + 1 if x.sum() > 0 else x - 1, "the graph breaks"),
            (lambda x: x + (1 if x.sum().item() > 0 else -1), "the graph breaks"),
            (lambda x: torch.where(x > 0, x + 1, x - 1), "not each element"),
            (lambda x: x + torch.sign(x.sum()), "A sum of 0"),
        ],
    ),
    "bottleneck-1": (
        end_of,
        [
            (lambda durations, launch: sum(durations), "launches take time too"),
            (lambda durations, launch: sum(durations) + launch * len(durations), "does not wait"),
            (
                lambda durations, launch: max(sum(durations), launch * len(durations)),
                "nothing to hide behind",
            ),
        ],
    ),
    "bottleneck-2": (
        quicker,
        [
            (lambda *of: of[-1], "from some point on it binds"),
            (quicker_by_sum, "the longer one counts"),
            (lambda *of: 1, "worth something until memory binds"),
        ],
    ),
    "simulation-1": (
        film_of(),
        [
            (film_of(velocity_first=False), "by the old velocity"),
            (film_of(collect=lambda film: torch.tensor([x.item() for x in film])), "has no graph"),
            (film_of(keep=torch.Tensor.detach), "is detached in each step"),
        ],
    ),
    "simulation-2": (
        bounced,
        [
            (lambda x, v, floor: (x, bounced(x, v, floor)[1]), "still below it"),
            (
                lambda x, v, floor: (torch.maximum(x, floor), bounced(x, v, floor)[1]),
                "as far above the floor",
            ),
            (lambda x, v, floor: (2 * floor - x, -v), "fly on"),
            (lambda x, v, floor: bounced(x, v, floor.detach()), "rises by 2"),
            (
                lambda x, v, floor: (torch.where(x < floor, -x, x), v),
                "which need not lie at 0",
            ),
        ],
    ),
    "simulation-3": (
        central(lambda x: 0.01 * max(1, abs(x))),
        [
            (central(lambda x: 1e-8), "it has seven digits"),
            (one_sided, "with the square of the step"),
            (central(lambda x: 0.003), "must grow with x"),
            (central(lambda x: 0.01 * abs(x) or 1e-30), "is none at 0"),
        ],
    ),
}
