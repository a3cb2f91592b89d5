# SPDX-License-Identifier: BSD-3-Clause
"""What pytest must not collect: files that the kit runs."""

collect_ignore = ["upstream_style"]
