# SPDX-License-Identifier: BSD-3-Clause
"""A server keeps a converter, with its models, for each set of options that a request had.

Report: https://github.com/docling-project/docling-serve/issues/72
Resolution: an option for the number of converters that are kept.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "growth"
ADVICE = r"limit|[Dd]rop"

docling_serve = library(
    "docling_serve/docling_conversion.py",
    """
import torch
from collections import OrderedDict
from torch import nn

class ConverterManager:
    def __init__(self, size):
        self.size, self.converters = size, OrderedDict()

    def get_converter(self, options):
        if options not in self.converters:
            layers = [nn.Linear(768, 768) for _ in range(7)]
            while self.size and len(self.converters) >= self.size:
                self.converters.popitem(last=False)
            self.converters[options] = nn.Sequential(*layers).to("cuda").eval()
        return self.converters[options]
""",
)


def program(mended: bool) -> None:
    """Converts 60 documents with fifteen sets of options."""
    manager = docling_serve.ConverterManager(2 if mended else None)
    with torch.no_grad():
        for document in range(60):
            converter = manager.get_converter(document // 4)
            for page in range(3):
                converter(torch.randn(400 + 50 * page, 768, device="cuda")).cpu()
