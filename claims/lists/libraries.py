# SPDX-License-Identifier: BSD-3-Clause
"""Faults that libraries have on a device alone, each reduced to lines of its own.

docs/reference/package_suites.md names the libraries and their calls.
"""

import functools
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.placement import GENERATED, SAME_CPU
from torch_npusim.testing import allow_sync

TWO = "cuda:1 and cuda:0|cuda:0 and cuda:1"


def rates_by_group(preds, placed):
    """Rate of positives by group; the metric needs no targets, so it makes some."""
    groups = torch.arange(len(preds), device=preds.device) % 2
    target = torch.zeros(preds.shape, device=preds.device if placed else None)
    return [(preds[groups == i].mean(), target[groups == i].sum()) for i in range(2)]


def random_points(center, placed):
    """Uniform points of a ball: a direction and a radius for each."""
    direction = F.normalize(torch.randn_like(center))
    lengths = torch.rand(len(center), device=center.device if placed else None)
    return center + lengths.sqrt()[:, None] * direction


def rotation_between(points, placed):
    """Rotation that takes a cloud of points to itself (Kabsch), reflections corrected."""
    u, _, v = torch.linalg.svd(points.T @ points)
    sign = torch.eye(len(u), dtype=u.dtype, device=u.device if placed else None)
    return u @ sign @ v


def travelled(positions, placed):
    """Distance travelled up to each position; that of the first is zero."""
    start = torch.zeros(1, dtype=positions.dtype, device=positions.device if placed else None)
    return torch.cat((start, (positions[1:] - positions[:-1]).norm(dim=-1).cumsum(0)))


def turned_signal(signal, placed):
    """A signal in a frame that is turned by a right angle."""
    angle = torch.tensor(torch.pi / 2, device=signal.device if placed else None)
    turn = torch.eye(4, device=angle.device)
    turn[0, 0] = turn[1, 1] = angle.cos()
    return turn @ signal


def is_orthogonal(u, placed):
    """Says whether the rows of a matrix are orthogonal to themselves."""
    zero = torch.zeros(1, device=u.device if placed else None)
    return torch.allclose((u * u).sum(-1), zero)


def noise_like(x, placed):
    """Noise of the shape of a tensor, which is added to it."""
    return x + (torch.randn_like(x) if placed else torch.randn(x.shape))


def whitened(batch, placed):
    """Rows without correlations; the unit matrix is given the type of the covariance."""
    covariance = batch.T @ batch + torch.eye(4, device=batch.device)
    unit = torch.eye(4)
    unit = unit.to(covariance) if placed else unit.type(covariance.type())
    return batch @ torch.linalg.solve_triangular(covariance, unit, upper=False)


def wavelet_of(data, placed):
    """Data times a learnt filter, which follows the data to their device."""
    wavelet = nn.Linear(4, 4, bias=False)
    wavelet = wavelet.to(data.device) if placed else wavelet.cuda()
    return wavelet(data)


def remapped(image, placed):
    """An image whose grey values go through a random curve."""
    curve = torch.rand(9, device=image.device if placed else None)
    levels = torch.linspace(0, 1, 8, device=curve.device)
    return curve[torch.bucketize(image, levels)]


def time_steps(steps, placed):
    """Each step of a sampler with the one after it; zero follows the last."""
    last = torch.zeros_like(steps[:1], device=steps.device if placed else "cpu")
    return list(zip(steps, torch.cat((steps[1:], last)), strict=True))


def dense_adjacency(graph, placed):
    """Adjacency matrix; edges without attributes count one."""
    edges = graph[:2].long()
    ones = torch.ones(edges.size(1), device=edges.device if placed else None)
    return torch.sparse_coo_tensor(edges, ones, (4, 4)).to_dense()


def noisy(signal, placed):
    """A signal with noise."""
    return signal + 0.1 * torch.randn(signal.shape[-1], device=signal.device if placed else None)


def homogeneous(points, placed):
    """Points with a last coordinate of one."""
    ones = torch.ones(len(points), 1, device=points.device if placed else None)
    return torch.cat((points, ones), dim=1)


def blended(batch, placed):
    """A batch of which a draw has chosen the rows that change."""
    chosen = torch.rand(len(batch), 1, device=batch.device if placed else None) > 0.5
    return torch.where(chosen, batch * 2, batch)


def sums_of_arrays(like, kept):
    """Sums of arrays; one that was moved to the device before is found by its id.

    Only a tensor of the CPU shares the memory of its array, and so keeps it and its id.
    """
    moved, sums = {}, []
    for value in range(8):
        array = np.full(4, value, dtype=np.float32)
        if id(array) not in moved:
            moved[id(array)] = torch.from_numpy(array).to(like.device), array if kept else None
        sums.append(moved[id(array)][0].sum().item())
    assert sums == [4 * value for value in range(8)], f"not the sums of eight arrays: {sums}"


class Neuron(nn.Module):
    """A module with a state; each instance is kept, so that all can be reset."""

    made: ClassVar[list[nn.Module]] = []

    def __init__(self, data, kept):
        super().__init__()
        self.state = data * 2
        if kept:
            self.made.append(self)


class Links:
    """Offsets of a robot's links; a cache of a method keeps the object by its first argument."""

    def __init__(self, data):
        self.offsets = data * 2

    @functools.lru_cache  # noqa: B019 - the fault
    def names_cached(self):
        return ["base", "elbow"]

    def names(self):
        return ["base", "elbow"]


def prefetched(size, recorded):
    """Sums of batches; a stream of its own uploads the next while one is in use."""
    uploads, used = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = None
    for _ in range(3):
        with torch.cuda.stream(uploads):
            coming = torch.ones(size).pin_memory().to("cuda", non_blocking=True)
        used.wait_stream(uploads)
        batch = coming
        if recorded:
            batch.record_stream(used)
        batch.sum()


def offloaded(x, waits):
    """Product with a weight that a stream of its own uploads for this use."""
    uploads = torch.cuda.Stream()
    host = torch.ones(4, 4).pin_memory()
    with torch.cuda.stream(uploads):
        weight = host.to("cuda", non_blocking=True)
    if waits:
        torch.cuda.current_stream().wait_stream(uploads)
    product = x @ weight
    torch.cuda.synchronize()
    return product


def rows_from(device, wait):
    """Rows of a device that are joined on the host."""
    rows = [torch.ones(1, 4, device=device).to("cpu", non_blocking=True) for _ in range(3)]
    wait(device)
    return torch.vstack(rows)


def wait_for_event(device):
    """Waits for what a device's current stream, or the current device's, has to do."""
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))
    done.synchronize()


def both(says, function, device="cuda:0"):
    """A claim about a function that places its constants, or leaves them where they are made."""

    def variant(placed):
        @allow_sync()
        def run(data):
            function(data.to(device), placed)

        return run

    return Brief(says, variant(False), variant(True))


CLAIMS = {
    "targets_that_a_metric_makes": both(
        r"indices should be either on cpu or on the same device", rates_by_group
    ),
    "radii_of_random_points": both(SAME_CPU, random_points),
    "sign_of_a_rotation": both(GENERATED, rotation_between),
    "first_distance": both(GENERATED, travelled),
    "frame_of_a_signal": both(GENERATED, turned_signal),
    "zero_to_compare_with": both(SAME_CPU, is_orthogonal),
    "noise_like_a_tensor": both(SAME_CPU, noise_like),
    "unit_matrix_by_type": both(TWO, whitened, "cuda:1"),
    "filter_to_the_current_device": both(TWO, wavelet_of, "cuda:1"),
    "curve_of_an_image": both(GENERATED, remapped),
    "step_after_the_last": both(GENERATED, time_steps),
    "weight_of_an_edge": both(
        r"backend of indices .* must match backend of values", dense_adjacency
    ),
    "noise_of_a_length": both(SAME_CPU, noisy),
    "last_coordinate": both(GENERATED, homogeneous),
    "mask_of_a_batch": both(SAME_CPU, blended),
    "arrays_found_by_id": both("not the sums of eight arrays", sums_of_arrays),
    "every_instance_is_kept": Brief(
        r"the test left .* of device memory[\s\S]*attribute 'made' of class",
        lambda data: Neuron(data, True),
        lambda data: Neuron(data, False),
    ),
    "cached_method": Brief(
        r"the test left .* of device memory[\s\S]*results cached by functools.lru_cache",
        lambda data: Links(data).names_cached(),
        lambda data: Links(data).names(),
    ),
    "batch_of_another_stream": Brief(
        r"record_stream is missing",
        lambda data: prefetched(1024, False),
        lambda data: prefetched(1024, True),
    ),
    "weight_of_another_stream": Brief(
        r"wait_stream is missing",
        lambda data: offloaded(data, False),
        lambda data: offloaded(data, True),
    ),
    "rows_on_their_way": Brief(
        r"synchronize is missing",
        lambda data: rows_from("cuda:0", lambda _: None),
        lambda data: rows_from("cuda:0", torch.cuda.synchronize),
    ),
    "event_of_the_current_device": Brief(
        r"synchronize is missing",
        lambda data: rows_from("cuda:1", lambda _: wait_for_event(None)),
        lambda data: rows_from("cuda:1", wait_for_event),
    ),
}
