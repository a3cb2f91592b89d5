# SPDX-License-Identifier: BSD-3-Clause
"""Records what a GPU does: what it accepts, allocates, answers, and how fast it is.

    python truth_record.pyz --minutes 10          # writes truth-<chip>-torch-<version>.zip

Needs torch 2.5 or newer, built for CUDA or ROCm, and nothing else: `npusim truth script` packs this
package into one file. A recording that was interrupted continues when the same command runs again.
The archive has no name of a host, a user or a path.

command        the command, and which sections there are
workers        processes that ask; journal: answers as they come, and the archive
batches        questions that share a process; device, operators: for all sections
identity, acceptance, allocation, rates, steps, answers, collectives    a section each
"""
