# SPDX-License-Identifier: BSD-3-Clause
"""Execution on this machine: workers, their supervision, and the session that logs their outcomes.

runner.py supervises processes; worker.py is the program of one; current_case.py is memory that they
share; watching.py records each call before it is made; budget.py limits the time of a run.
environment.py describes the machine. session.py drives whatever executes cases and writes the log.
Code enters if it decides how and when a case is run. It prints nothing and writes no report.
"""
