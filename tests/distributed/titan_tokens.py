# SPDX-License-Identifier: BSD-3-Clause
"""torchtitan's debug model without the files that its wheel lacks: tokens are drawn by chance.

torchtitan imports it (`--experimental.custom_import titan_tokens`) and finds the model `tokens`.
"""

import dataclasses
from types import SimpleNamespace

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec

WORDS = 256


class Tokens(IterableDataset):
    def __init__(self, rank, length):
        self.rank, self.length = rank, length

    def __iter__(self):
        draw = torch.Generator().manual_seed(self.rank)
        while True:
            row = torch.randint(WORDS, (self.length + 1,), generator=draw)
            yield {"input": row[:-1]}, row[1:]


def loader(dp_world_size, dp_rank, tokenizer, job_config):
    training = job_config.training
    size = getattr(training, "local_batch_size", None) or training.batch_size
    rows = Tokens(dp_rank, training.seq_len)
    return ParallelAwareDataloader(rows, dp_rank, dp_world_size, size)


register_train_spec(
    dataclasses.replace(
        get_train_spec("llama3"),
        name="tokens",
        build_tokenizer_fn=lambda _: SimpleNamespace(n_words=WORDS, eos_id=0),
        build_dataloader_fn=loader,
    )
)
