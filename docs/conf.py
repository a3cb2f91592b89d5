# SPDX-License-Identifier: BSD-3-Clause
"""The documentation site: `make docs` writes it to build/docs/html, without network."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT), str(ROOT / "tools")]
os.environ["NPUSIM_AUTOLOAD"] = "1"  # for the pages that execute

import torch_npusim  # noqa: E402

project = "torch_npusim"
author = "torch_npusim contributors"
project_copyright = "torch_npusim contributors, BSD-3-Clause"
version = release = torch_npusim.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "linked_files",
    "site_pages",
    "surfaces",
]
exclude_patterns = ["_ext", "_build", "requirements.txt"]
root_doc = "index"
nitpicky = True
# Other projects, whose inventories are in the network, and types of our own that no page shows.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|collections|concurrent|pathlib|datetime|os|types|typing)\..*"),
    (r"py:.*", r"(Executor|NDArray|PathLike|Stack|dict\[(int|str)|(list|set)\[tuple\[\w+|np\.\w+)"),
    (r"py:.*", r"torch_npusim\.(_C|inductor\.uncompiled|testing\.triton_check)\..*"),
    (r"py:.*", r"torch_npusim\.profiling\._recording\.Fill"),
    (r"py:.*", r"npusim_conformance\.(properties\.base|report\.comparison)\..*"),
    (r"py:.*", r"npusim_lab\.(_lab|recording)\..*"),
]
# The builtin type `bytes` in a signature, which classes have as an attribute too.
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # a cache knows the page, and not the code that it runs
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

smartquotes = False  # options keep their two hyphens
html_theme = "pydata_sphinx_theme"
html_title = "torch_npusim"
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_sourcelink_suffix = ""
html_theme_options = {
    "logo": {"text": "torch_npusim"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "api/*": ["sidebar-nav-bs"]}
html_show_sphinx = False

default_role = "code"  # docstrings are written with single backticks
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
