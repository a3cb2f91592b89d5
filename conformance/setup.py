# SPDX-License-Identifier: BSD-3-Clause
"""Pure Python: everything but the licence is in pyproject.toml."""

from setuptools import setup

setup(license="BSD-3-Clause")
