# SPDX-License-Identifier: BSD-3-Clause
"""Adapters for training frameworks that choose devices from lists of their own.

One module per framework: `lightning`, `accelerate`, `transformers`. Importing one of them imports
nothing of the framework; its functions do. Nothing of a framework is replaced: each adapter uses
what the framework offers for devices it does not know, and docs/use/integrations.md
says what is left.

Code enters if a framework asks for an adapter of its own kind.
"""
