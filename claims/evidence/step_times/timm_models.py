# SPDX-License-Identifier: BSD-3-Clause
"""timm's models, without torchvision."""

import importlib.abc
import importlib.machinery
import sys
import types

import torch


class _Absent(type):
    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class _NoVision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision, whose names timm imports and these programs do not use."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def make(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return _Absent(name, (torch.nn.Module,), {})

        module.__getattr__ = make
        return module

    def exec_module(self, module):
        pass


def timm():
    """Returns the package."""
    if not any(isinstance(finder, _NoVision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoVision())
    import timm

    return timm


def families():
    """Name of a model -> the module that defines it."""
    found = timm()
    return {
        name: module for module in found.list_modules() for name in found.list_models(module=module)
    }
