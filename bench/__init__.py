# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of jax_index: `python -m bench` lists them, bench/README.md explains them."""
