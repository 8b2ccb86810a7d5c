# SPDX-License-Identifier: Apache-2.0
"""What all charts share: ink that is legible on light and dark pages, and files without a date."""

from __future__ import annotations

from pathlib import Path

INK = "#7a828e"  # contrast above 3.8 : 1 on white and on GitHub's dark page
STYLE = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "jax_index",
}


def metadata(path: Path) -> dict[str, None] | None:
    """No date in the file: the same record draws the same one."""
    return {"Date": None} if path.suffix == ".svg" else None
