# SPDX-License-Identifier: BSD-3-Clause
"""The backend under test: its declarations, its registrations and the loaded device.

expectations.py reads the file in which an author declares facts about a backend, and
expectation_update.py writes it. census.py reads torch's dispatcher. device.py loads the backend and
asks its module for parts that not every backend has.
Code enters if it is about one backend and needs no case. Knowledge of a particular backend does not
enter: everything here works on names that any module of a device may have.
"""
