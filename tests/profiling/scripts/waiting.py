# SPDX-License-Identifier: BSD-3-Clause
"""Says that it runs, in a named pipe that it holds open, and waits for ever."""

import sys
import threading

pipe = open(sys.argv[1], "w", buffering=1)
pipe.write("runs\n")
threading.Event().wait()
