# SPDX-License-Identifier: BSD-3-Clause
"""Execution on other machines: an order is sent as one line, outcomes come back as lines of a log.

order.py is the message, connection.py sends it through a command, cluster.py through an executor.
`npusim-conformance serve` is the other side. Code enters if it moves orders or outcomes between
machines; both sides execute cases by `run`.
"""
