# SPDX-License-Identifier: Apache-2.0
"""Settings under which every test runs, and the fixtures that they share.

x64 is off, as users have it; tests of 64-bit types switch it on with `oracle.x64`. Silent promotion
and silent rank promotion are errors. Tests that take `device` run on the CPU and, where there is
one, on a GPU; others run wherever JAX puts them, unless they pin a device and say why.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the random inputs")


def pytest_report_header(config):
    return f"jax {jax.__version__}, seed {config.getoption('--seed')}"


@pytest.fixture
def rng(request):
    """A generator that depends on --seed and on the test alone, not on the order of tests."""
    name = [ord(c) for c in request.node.nodeid]
    return np.random.default_rng([request.config.getoption("--seed"), *name])


def _platforms():
    try:
        return ["cpu", "cuda"] if jax.devices("cuda") else ["cpu"]
    except RuntimeError:
        return ["cpu"]


@pytest.fixture(params=_platforms())
def device(request):
    """Each kind of device that this machine has, made the default one for the test."""
    chosen = jax.devices(request.param)[0]
    with jax.default_device(chosen):
        yield chosen


@pytest.fixture
def cpu():
    """The CPU as the default device, for what concerns the CPU alone."""
    chosen = jax.devices("cpu")[0]
    with jax.default_device(chosen):
        yield chosen
