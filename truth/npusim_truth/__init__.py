# SPDX-License-Identifier: BSD-3-Clause
"""Recordings of real GPUs, and what they say of npusim's claims (docs/judge/truth.md).

The recorder makes a recording; it needs torch and nothing else of this package. npusim's claims are
its answers to the same questions: compare() asks it those that a recording has.

    >>> from npusim_truth import recordings
    >>> recordings.load("truth.zip").chip  # doctest: +SKIP
    'NVIDIA A100-SXM4-80GB'

Code enters if it makes, reads or judges a recording of a GPU.
"""
