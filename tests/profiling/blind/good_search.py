# SPDX-License-Identifier: BSD-3-Clause
"""Queries are ranked against a corpus of vectors, whose answers come home at the end."""

import torch

device = "npusim"
corpus = torch.ones(1 << 20, 1024, dtype=torch.bfloat16, device=device)
queries = torch.ones(1 << 13, 1024, dtype=torch.bfloat16, device=device)
found = []
with torch.inference_mode():
    for part in corpus.split(1 << 17):
        found.append((queries @ part.T).amax(1))
answer = torch.stack(found).amax(0).cpu()
