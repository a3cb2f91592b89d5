# SPDX-License-Identifier: BSD-3-Clause
"""Conformance kit for PyTorch backends: what works on a device, what does not, and why.

Most people use the command `npusim-conformance`. From Python: `catalog` lists cases, `runner` runs
them in isolated workers, `properties.Property` is the base class of a check of your own.
Nothing is imported here, so that a worker decides in which order torch and the backend load.
"""

__version__ = "0.1.0"
