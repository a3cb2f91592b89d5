# SPDX-License-Identifier: BSD-3-Clause
"""Imitated public reports: the first lines of the verdict are the resolution of each."""

import re

import pytest

from claims.reports import RECORDED, judged, names, report
from npusim_lab import explain, load
from npusim_lab.causes import ADVICE

MISSES = {  # the page's
    "actions_with_their_graph": "half",
    "adapter_for_an_offloaded_model": "half",
    "captions_encoded_with_their_graph": "wrong",
    "gradients_kept_into_rollouts": "half",
    "hessians_of_all_experts": "half",
    "moments_after_the_first_step": "wrong",
    "outputs_of_earlier_microbatches": "half",
    "quantized_blocks_kept": "half",
    "sampler_logits_in_float32": "half",
    "startup_of_a_large_server": "wrong",
    "streams_of_captures": "wrong",
    "weights_up_to_the_brim": "wrong",
}


@pytest.mark.parametrize("name", names())
def test_the_verdict_is_the_resolution(name):
    answer = explain(load(RECORDED / f"{name}.npt"), quick=True)
    assert judged(name, answer) == MISSES.get(name, "right"), answer["sentences"]


def test_each_report_has_a_link_of_its_own_and_causes_of_the_list():
    links = [re.search(r"Report: (https://\S+)\nResolution: ", report(n).__doc__) for n in names()]
    assert len({link[1] for link in links}) == len(links) >= 142
    assert {report(name).CAUSE for name in names()} <= set(ADVICE)
