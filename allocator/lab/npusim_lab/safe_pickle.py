# SPDX-License-Identifier: BSD-3-Clause
"""Reading pickles of strangers: numbers, texts, lists, dictionaries, and nothing that has a name.

A pickle runs code through the names it looks up and calls. This reader looks up none, so what a
snapshot legitimately holds is read at full speed and everything else ends with an error.
"""

from __future__ import annotations

import gc
import pickle
from os import PathLike
from typing import Any, NoReturn

from npusim_lab.trace import TraceError


class _BuiltinsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise TraceError(
            f"the pickle asks for {module}.{name}; a snapshot holds numbers, texts, lists and "
            f"dictionaries only. Nothing of it was run: do not open this file with pickle.load()"
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise TraceError(f"the pickle asks for the outside object {str(pid)[:40]!r}")


def load(path: str | PathLike[str]) -> Any:
    """Return what a pickle file holds, built of builtins alone.

    Raises:
        TraceError: If the file asks for anything else, or is damaged.
        OSError: If it cannot be read.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # nothing here is garbage; walking millions of dictionaries takes most of the time
    try:
        with open(path, "rb") as file:
            return _BuiltinsOnly(file).load()
    except TraceError as problem:
        raise TraceError(f"{path}: {problem}") from None
    except OSError:
        raise
    except Exception as problem:  # a damaged pickle raises nearly anything
        raise TraceError(
            f"{path}: not a pickle, or damaged: {type(problem).__name__}: {problem}"
        ) from None
    finally:
        if was_enabled:
            gc.enable()
