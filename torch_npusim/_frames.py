# SPDX-License-Identifier: BSD-3-Clause
"""Which Python frames are not the program's own."""

import os

import torch

#: Beginnings of the files of torch and of this package.
FOREIGN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
