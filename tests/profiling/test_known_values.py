# SPDX-License-Identifier: BSD-3-Clause
"""Small integers and booleans keep their values in a dry run while all operands are known."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from torch_npusim import npusim
from torch_npusim.sim import dry_run

DEVICE = "npusim"


def numbers(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def unknown(*sizes):
    return torch.randint(9, sizes, device=DEVICE)


def through_a_view():
    x = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    x.t()[1] = 7
    x[0, 0] += 5
    return x


def through_data():
    x = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    x.data[1:].fill_(4)
    return x.detach()


def by_set():
    x, y = numbers(1, 2), numbers(3, 4)
    x.set_(y)
    y.add_(1)
    return x


def in_inference_mode():
    with torch.inference_mode():
        return torch.arange(5, device=DEVICE).clone() * 2


# The values are those of a run that is not dry, and no answer is counted.
KNOWN = {
    "tensor": lambda: numbers(3, 1, 2),
    "factories": lambda: torch.full((2,), 3, device=DEVICE) - numbers(0, 1),
    "arange": lambda: torch.arange(2, 9, 3, device=DEVICE),
    "logic": lambda: (numbers(1, 5) > 2) | ~(numbers(4, 4) == 4),
    "reductions": lambda: numbers(3, 9).max() + numbers(3, 9).sum(),
    "a view": through_a_view,
    "data": through_data,
    "set_": by_set,
    "copy_": lambda: torch.empty(3, dtype=torch.int64, device=DEVICE).copy_(torch.arange(3)),
    "cat": lambda: torch.cat([numbers(1), numbers(2, 3)]),
    "slices": lambda: torch.arange(9, device=DEVICE)[2:8:3],
    "inference mode": in_inference_mode,
    "or True": lambda: (unknown(3) > 4) | torch.full((3,), True, device=DEVICE),
    "and 0": lambda: unknown(3) & ~torch.full((3,), True, device=DEVICE),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_values_are_those_of_a_real_run(case):
    make = KNOWN[case]
    expected = make().tolist()
    with dry_run() as run:
        assert make().tolist() == expected
        assert run.answers() == []


def of_an_index():
    x = numbers(1, 2)
    x.index_put_((unknown(2) % 2,), numbers(5, 6))
    return x


def of_out():
    x = numbers(1, 2)
    torch.add(unknown(2), 1, out=x)
    return x


def of_a_view():
    x = numbers(1, 2)
    x[:1].copy_(unknown(1))
    return x


def of_set():
    x = numbers(1, 2)
    x.set_(unknown(2))
    return x


def of_data():
    x = numbers(1, 2)
    x.data = unknown(2)
    return x


def of_storage():
    x = numbers(1, 2)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(16)
    return x


def of_a_list():
    x = [numbers(1, 2)]
    torch._foreach_add_(x, [unknown(2)])
    return x[0]


def of_random():
    return numbers(1, 2).random_(9)


def of_another_library():
    x = numbers(1, 2)
    torch.from_dlpack(x).add_(unknown(2))
    return x


def of_a_graph():
    x = numbers(1, 2)
    graph = npusim.NPUSIMGraph()
    with npusim.graph(graph):
        x.add_(1)
    graph.replay()
    return x


UNKNOWN = {f.__name__: f for f in (
    of_an_index, of_out, of_a_view, of_set, of_data, of_storage, of_a_list, of_random,
    of_another_library, of_a_graph,
)}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_write_that_is_not_followed_makes_a_tensor_unknown(case):
    with dry_run() as run:
        made = UNKNOWN[case]()
        assert made.tolist() == [0, 0]
        assert [answer.what for answer in run.answers()] == ["zeros"]


def test_a_greedy_loop_ends_at_its_longest():
    with dry_run() as run, torch.device(DEVICE), torch.no_grad():
        head = nn.Linear(8, 32)
        ids, unfinished, steps = unknown(2, 3), torch.ones(2, dtype=torch.int64), 0
        finished = False
        while not finished:
            token = head(torch.rand(2, 8)).argmax(-1)
            ids = torch.cat([ids, token[:, None]], dim=-1)
            done = torch.full((2,), ids.shape[1] >= 10) | torch.isin(token, numbers(1, 2))
            unfinished = unfinished & ~done
            finished = unfinished.max() == 0
            steps += 1
    assert (steps, ids.shape[1]) == (7, 10)
    assert {answer.answer for answer in run.answers()} == {0}


def test_generate_ends_at_its_longest():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes)
    with dry_run():
        model = transformers.LlamaForCausalLM(config).to(DEVICE)
        prompt = torch.arange(4)[None].to(DEVICE)
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=9, do_sample=False,
            pad_token_id=0, eos_token_id=2,
        )  # fmt: skip
    assert made.shape == (1, 13)


def test_beams_go_on_to_their_longest():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes)
    with dry_run() as run:
        model = transformers.LlamaForCausalLM(config).to(DEVICE)
        prompt, steps = torch.arange(8).view(2, 4).to(DEVICE), []
        model.register_forward_hook(lambda *_: steps.append(1))
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=9, do_sample=False,
            num_beams=3, pad_token_id=0, eos_token_id=2,
        )  # fmt: skip
    assert len(steps) == 9
    assert len(made) == 2
    assert 4 < made.shape[1] <= 13
    assert all(answer.count <= 10 for answer in run.answers())


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_gathered_or_broadcast_counts_as_alike_on_all_ranks(rank):
    dist.init_process_group("uniform", rank=rank, world_size=2, store=dist.HashStore())
    try:
        with dry_run():
            own = numbers(3, 4)
            parts = [torch.empty_like(own) for _ in range(2)]
            dist.all_gather(parts, own)
            whole = torch.empty(4, dtype=torch.int64, device=DEVICE)
            dist.all_gather_into_tensor(whole, own)
            dist.broadcast(own, 0)
            lists = [each.tolist() for each in (*parts, whole, own)]
            assert lists == [[3, 4], [3, 4], [3, 4, 3, 4], [3, 4]]
            objects = [None, None]
            dist.all_gather_object(objects, {"rank": 7})
            assert objects == [{"rank": 7}] * 2
            dist.all_reduce(own)
            dist.all_gather(parts, unknown(2))
            assert [each.tolist() for each in (own, *parts)] == [[0, 0]] * 3  # unknown
    finally:
        dist.destroy_process_group()


def test_shapes_of_many_parameters_are_compared():
    """DDP broadcasts the shapes of all parameters in one tensor, and compares them with its own."""
    dist.init_process_group("uniform", rank=0, world_size=4, store=dist.HashStore())
    try:
        with dry_run(), torch.device(DEVICE):
            layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(700))
            model = nn.parallel.DistributedDataParallel(layers)
            assert len(list(model.parameters())) == 1400
    finally:
        dist.destroy_process_group()


def test_counts_of_unknown_elements_add_up():
    with dry_run() as run:
        tokens, experts = torch.empty(10, 4, device=DEVICE), unknown(10)
        counts = torch.bincount(experts, minlength=4).tolist()
        assert counts == [3, 3, 2, 2]
        assert [len(part) for part in tokens.split(counts)] == counts
        assert torch.bincount(numbers(2, 2, 0), minlength=4).tolist() == [1, 0, 2, 0]
        answers = [each for each in run.answers() if each.operator == "aten::bincount"]
        assert [each.count for each in answers] == [1, 1]  # a line each
