# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_index`: what is installed, and whether this machine gives the promised bits."""

import platform
import sys
import time
from importlib.metadata import version

import jax
import numpy as np

import jax_index
from jax_index import _native, golden


def main() -> int:
    """Print versions, back ends and devices; check the golden bits on each kind of device."""
    print(f"jax_index {jax_index.__version__}")
    print(
        f"python {platform.python_version()}, jax {jax.__version__}, jaxlib {version('jaxlib')}, "
        f"numpy {np.__version__}, XLA FFI {'.'.join(map(str, _native.runtime_api_version()))}"
    )
    for name, state in jax_index.backends().items():
        print(f"{name}: {state}")
    failures = 0
    kinds = {d.platform: d for d in [*jax.devices("cpu")[:1], *jax.devices()[:1]]}
    for kind, device in kinds.items():
        print(f"device {device} ({device.device_kind}): ", end="", flush=True)
        native = {"cpu": _native.CPU, "gpu": _native.CUDA}.get(kind)
        if native is None or native.module is None:
            print("pure JAX, bits not promised")
            continue
        start = time.perf_counter()
        wrong = golden.check(device)
        seconds = time.perf_counter() - start
        failures += len(wrong)
        if wrong:
            print(f"{len(wrong)} results differ from the golden bits: {', '.join(wrong[:5])}")
        else:
            print(f"golden bits equal ({seconds:.1f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
