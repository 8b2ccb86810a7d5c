# SPDX-License-Identifier: Apache-2.0
"""Write the golden bits anew: a release that changes them says so under "Changed bits"."""

from jax_index import golden

print(f"{golden.write()} digests written to {golden.FILE}")
