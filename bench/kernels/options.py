# SPDX-License-Identifier: Apache-2.0
"""Argument types that the benchmarks of kernels share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def words(text: str) -> list[str]:
    """As `a,b`."""
    return [word.strip() for word in text.split(",")]


def among(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Words that must be among `names`."""

    def read(text: str) -> list[str]:
        given = words(text)
        unknown = [word for word in given if word not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]}; there are {', '.join(names)}")
        return given

    return read


def numbers(text: str) -> list[int]:
    """As `1,16,4k`."""
    return [number(word) for word in words(text)]


def number(word: str) -> int:
    """A count, with k and M for 2^10 and 2^20."""
    unit = {"k": 2**10, "M": 2**20}.get(word[-1:])
    return int(word[:-1]) * unit if unit else int(word)


def sizes(text: str) -> list[tuple[int, int]]:
    """As `13000:43000,512k:4M`: rows and edges."""
    return [(number(n), number(m)) for n, m in (pair.split(":") for pair in words(text))]
