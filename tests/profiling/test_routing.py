# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of experts in a dry run: the parts of all experts are the tokens that there are."""

import pytest
import torch
from torch.nn import functional as F

from torch_npusim._blame import short_path
from torch_npusim.sim import dry_run

DEVICE = "npusim"
TOKENS, EXPERTS, CHOSEN, WIDTH = 50, 8, 3, 16
PART = [19] * 6 + [18] * 2  # of 150


def scores():
    return torch.rand(TOKENS, EXPERTS, device=DEVICE)


def by_comparison():
    chosen = scores().topk(CHOSEN).indices
    return [len(torch.where(chosen == i)[0]) for i in range(EXPERTS)]


def by_rows():
    chosen = scores().topk(CHOSEN).indices
    x, parts = torch.rand(TOKENS, WIDTH, device=DEVICE), []
    for i in range(EXPERTS):
        mask = (chosen == i).any(-1)
        parts.append(len(x[mask.view(-1)]) if mask.any() else 0)
    return parts


def by_one_hot():
    mask = F.one_hot(scores().topk(CHOSEN).indices, EXPERTS + 1).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    return [len(torch.where(mask[i[0]])[0]) for i in hit]


def by_counts():
    chosen = scores().topk(CHOSEN).indices
    counts = torch.histc(chosen.view(-1), bins=EXPERTS, min=0, max=EXPERTS)
    order = torch.argsort(chosen.view(-1), stable=True)
    x = torch.rand(TOKENS, WIDTH, device=DEVICE)[order // CHOSEN]
    return [len(part) for part in x.split(counts.tolist())]


def by_bincount():
    chosen = scores().topk(CHOSEN).indices
    return torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()


def by_scatter():
    chosen = scores().topk(CHOSEN).indices
    counts = chosen.new_zeros(TOKENS, EXPERTS).scatter_(1, chosen, 1).sum(0)
    return counts.cpu().tolist()


def by_gates():
    best, chosen = scores().topk(CHOSEN)
    gates = torch.zeros(TOKENS, EXPERTS, device=DEVICE).scatter(1, chosen, best)
    routed = torch.nonzero(gates)[:, 0]
    return [len(part) for part in routed.split((gates > 0).sum(0).tolist())]


def by_a_map():
    chosen = scores().topk(CHOSEN).indices
    routing = torch.zeros_like(scores()).int().scatter(1, chosen, 1).bool().T.contiguous()
    tokens = torch.arange(TOKENS, device=DEVICE).expand(EXPERTS, -1)
    assert len(tokens.masked_select(routing)) == TOKENS * CHOSEN
    return [len(tokens[i].masked_select(routing[i])) for i in range(EXPERTS)]


def by_a_row_of_numbers():
    chosen = scores().topk(CHOSEN).indices
    mask = chosen.unsqueeze(-1) == torch.arange(EXPERTS, device=DEVICE)
    return [len(mask[..., i].nonzero()) for i in range(EXPERTS)]


def by_an_index():
    mask = F.one_hot(scores().topk(CHOSEN).indices, EXPERTS).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    return [len(torch.where(mask[i].squeeze(0))[0]) for i in hit]


def by_several_choices():
    chosen = torch.cat([scores().argmax(-1, keepdim=True) for _ in range(CHOSEN)], dim=-1)
    return [len(torch.where(chosen == i)[0]) for i in range(EXPERTS)]


def by_priority():
    gates = torch.zeros(TOKENS, EXPERTS, device=DEVICE).scatter(1, scores().topk(CHOSEN)[1], 1)
    first = gates[scores().amax(-1).argsort()]
    return [len(first[:, i].nonzero()) for i in range(EXPERTS)]


ROUTINGS = {f.__name__: f for f in (
    by_comparison, by_rows, by_one_hot, by_counts, by_bincount, by_scatter, by_gates, by_a_map,
    by_a_row_of_numbers, by_an_index, by_several_choices, by_priority,
)}  # fmt: skip


@pytest.mark.parametrize("case", ROUTINGS)
@pytest.mark.parametrize("selected", [0.5, 0.1])
def test_parts_add_up_whatever_a_mask_selects(case, selected):
    assert sum(ROUTINGS[case]()) == TOKENS * CHOSEN
    with dry_run(selected=selected) as run:
        assert ROUTINGS[case]() == PART
    assert run.answers()
    assert all(short_path(__file__) in answer.place for answer in run.answers())


def test_one_choice_of_each_token():
    with dry_run():
        for chosen in (scores().argmax(-1), torch.multinomial(scores(), 1)[:, 0],
                       torch.randint(EXPERTS, (TOKENS,), device=DEVICE),
                       scores().max(-1).indices):  # fmt: skip
            parts = [len((chosen == i).nonzero()) for i in range(EXPERTS)]
            assert (sum(parts), max(parts) - min(parts)) == (TOKENS, 1)
            rest = [len(scores()[chosen != i]) for i in range(EXPERTS)]
            assert [a + b for a, b in zip(parts, rest, strict=True)] == [TOKENS] * EXPERTS
            assert len(torch.unique(chosen)) == EXPERTS


def test_fewer_tokens_than_experts_reach_as_many_experts():
    with dry_run():
        mask = F.one_hot(scores()[:1].topk(CHOSEN).indices, EXPERTS).permute(2, 1, 0)
        hit = (mask.sum((-1, -2)) > 0).nonzero()
        assert len(hit) == CHOSEN
        assert sum(len(torch.where(mask[i[0]])[0]) for i in hit) == CHOSEN


def test_a_mask_and_its_sum_agree():
    with dry_run(selected=0.3):
        x = torch.rand(10, 4, device=DEVICE)
        mask = x[:, 0] > 0.5
        assert torch.empty(int(mask.sum()), 4, device=DEVICE).copy_(x[mask]).shape == (3, 4)


SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CHOICES = {"num_experts_per_tok": 2, "experts_implementation": "eager"}


def mixtral(experts):
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SIZES, **HEADS, **CHOICES, num_local_experts=experts))


def phimoe(experts):
    from transformers import PhimoeConfig, PhimoeForCausalLM

    return PhimoeForCausalLM(PhimoeConfig(**SIZES, **HEADS, **CHOICES, num_local_experts=experts))


def switch(experts):
    import transformers

    config = transformers.SwitchTransformersConfig(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=1, num_decoder_layers=1,
        num_experts=experts, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.SwitchTransformersForConditionalGeneration(config)


def peak_of(make, experts):
    torch.npusim.reset_peak_memory_stats()
    before = torch.npusim.memory_allocated()
    torch.manual_seed(0)
    model = make(experts).to(DEVICE)
    tokens = torch.randint(64, (2, 64)).to(DEVICE)
    rows = []
    for name, module in model.named_modules():
        if name.endswith(("act_fn", ".act")):
            module.register_forward_hook(lambda _, given, made: rows.append(given[0].shape[0]))
    model(input_ids=tokens, labels=tokens).loss.backward()
    peak = torch.npusim.max_memory_allocated() - before
    del model, tokens
    return sum(rows), peak


@pytest.mark.parametrize(
    ("make", "layers", "each"), [(mixtral, 2, 2), (phimoe, 2, 2), (switch, 2, 1)]
)
def test_experts_of_transformers_get_each_token(make, layers, each):
    pytest.importorskip("transformers")
    rows, peak = peak_of(make, 8)
    with dry_run():
        dry_rows, dry_peak = peak_of(make, 8)
    assert dry_rows == rows == layers * 2 * 64 * each
    assert abs(dry_peak / peak - 1) < 0.1
