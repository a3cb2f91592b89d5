# SPDX-License-Identifier: BSD-3-Clause
"""The record of a run: its log, shards merged into one log, and counts by status and cause.

Code enters if it reads or writes a log, or summarises one without a format. Nothing here runs a
case.
"""
