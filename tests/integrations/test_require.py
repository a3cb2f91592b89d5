# SPDX-License-Identifier: BSD-3-Clause
"""The adapters without their frameworks: importing them is free, using them name the command."""

import pytest

from torch_npusim.integrations import _require


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(ModuleNotFoundError, match=r"pip install no_such_package$") as caught:
        _require.require("no_such_package.part")
    assert caught.value.name == "no_such_package"


def test_adapters_import_no_framework(run_script):
    done = run_script(
        """
        import sys
        hidden = ["lightning", "pytorch_lightning", "accelerate", "transformers"]
        sys.modules.update(dict.fromkeys(hidden))  # as if they were not installed
        from torch_npusim.integrations import accelerate, lightning, transformers
        for use in lightning.register, accelerate.enable:
            try:
                use()
            except ModuleNotFoundError as error:
                print(error)
        assert not any(sys.modules[name] for name in hidden)
        """
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["lightning", "accelerate"]
