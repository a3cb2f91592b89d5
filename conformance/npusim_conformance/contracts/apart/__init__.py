# SPDX-License-Identifier: BSD-3-Clause
"""Scripts in processes of their own, for contracts about exits, forks, compilers and ranks.

script.py runs a script that finds `torch` and `device`; scripts are forked from
fork_server.py. compiling.py has the scripts that compile, ranks.py is the program of one rank.
Code enters if a contract needs a second process for it.
"""
