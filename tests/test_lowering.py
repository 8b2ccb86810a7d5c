# SPDX-License-Identifier: Apache-2.0
"""gather by XLA's own ops or by the kernel: the same bits, the same adjoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index.ops import rows
from tests import oracle
from tests.cases import PATTERNS, values

LOWERINGS = ["native", "kernel", "auto"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64", "bool"])
@pytest.mark.parametrize("pattern", ["random", "padded", "no rows, edges dropped", "no edges"])
@pytest.mark.parametrize("fill", [0, 1])
def test_equal_bits(pattern, dtype, fill):
    ids, n = PATTERNS[pattern]
    plan = jax_index.make_plan(ids, n, mode="drop")
    x = values(np.random.default_rng(0), (n, 3), dtype)
    expected = oracle.gather(x, ids, fill=fill)
    for lowering in LOWERINGS:
        out = jax_index.gather(jnp.asarray(x), plan, fill_value=fill, lowering=lowering)
        oracle.assert_same(out, expected, lowering)


def test_subnormals_and_nan_payloads_pass_unchanged():
    x = jnp.asarray(np.array([1, 0x7F800001, 0xFFC00123], np.uint32).view(np.float32))
    for lowering in LOWERINGS:
        out = jax_index.gather(x, [2, 0, 1], lowering=lowering)
        assert np.asarray(out).view(np.uint32).tolist() == [0xFFC00123, 1, 0x7F800001]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_adjoint_is_the_row_sum(lowering):
    ids, n = PATTERNS["hubs"]
    plan = jax_index.make_plan(ids, n)
    x = jnp.zeros((n, 5), jnp.float32)
    ct = jnp.asarray(values(np.random.default_rng(1), (ids.size, 5), "float32"))
    _, pull = jax.vjp(lambda x: jax_index.gather(x, plan, lowering=lowering), x)
    oracle.assert_same(pull(ct)[0], oracle.scatter_add(ct, ids, n))


def test_native_is_fusible_and_kernel_is_a_call():
    plan = jax_index.make_plan([2, 0, 1, 2], 3)
    x = jnp.ones((3, 4))
    text = {
        lowering: jax.jit(lambda x, p, how=lowering: jax_index.gather(x, p, lowering=how))
        .lower(x, plan)
        .as_text()
        for lowering in LOWERINGS
    }
    assert "jax_index.gather" not in text["native"]
    assert "jax_index.gather" in text["kernel"]


def test_batches_of_data_and_of_plans():
    rng = np.random.default_rng(2)
    ids = rng.integers(-1, 6, (3, 8))
    plans = jax.tree.map(
        lambda *leaves: jnp.stack(leaves),
        *[jax_index.make_plan(i, 6, mode="drop").generic for i in ids],
    )
    x = jnp.asarray(rng.normal(size=(6, 3, 2)).astype(np.float32))
    for lowering in LOWERINGS:
        call = lambda x, p, how=lowering: jax_index.gather(x, p, lowering=how)  # noqa: E731
        out = jax.vmap(call, in_axes=(1, 0))(x, plans)
        for k in range(3):
            oracle.assert_same(out[k], oracle.gather(np.asarray(x)[:, k], ids[k]))


def test_the_rule_reads_shapes_and_platform_alone():
    def rule(platform, m, width, dtype="float32", lowering="auto"):
        out = jax.core.ShapedArray((m, width), jnp.dtype(dtype))
        return rows._gather_native(platform, [], [out], axis=0, lowering=lowering)

    assert not rule("cpu", 10, 4)
    assert rule("cuda", 43_000, 64)
    assert not rule("cuda", 4_000_000, 64)
    assert rule("cuda", 4_000_000, 33, "bfloat16")
    for platform in ("cpu", "cuda"):
        assert rule(platform, 4_000_000, 64, lowering="native")
        assert not rule(platform, 10, 1, lowering="kernel")


def test_an_unknown_lowering_is_refused():
    with pytest.raises(ValueError, match=r"gather: lowering must be .*, got 'fast'\. Leave it out"):
        jax_index.gather(jnp.ones(3), [0], lowering="fast")
