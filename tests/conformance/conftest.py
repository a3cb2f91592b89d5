# SPDX-License-Identifier: BSD-3-Clause
"""Exclusions from pytest's collection: files that the kit runs."""

collect_ignore = ["upstream_style"]
