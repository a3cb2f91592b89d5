# SPDX-License-Identifier: BSD-3-Clause
"""Imitated public reports: the first lines of the verdict are the resolution of each."""

import re

import pytest

from claims.reports import RECORDED, judged, names, report
from npusim_lab import explain, load
from npusim_lab.causes import ADVICE

MISSES = {  # the page's
    "actions_with_their_graph": "half",
    "hessians_of_all_experts": "half",
    "pages_and_queries_at_once": "wrong",
    "quantized_blocks_kept": "half",
    "weights_up_to_the_brim": "wrong",
}


@pytest.mark.parametrize("name", names())
def test_the_verdict_is_the_resolution(name):
    answer = explain(load(RECORDED / f"{name}.npt"), quick=True)
    assert judged(name, answer) == MISSES.get(name, "right"), answer["sentences"]


def test_each_report_has_a_link_of_its_own_and_causes_of_the_list():
    links = [re.search(r"Report: (https://\S+)\nResolution: ", report(n).__doc__) for n in names()]
    assert len({link[1] for link in links}) == len(links) >= 151
    assert {report(name).CAUSE for name in names()} <= set(ADVICE)
