# SPDX-License-Identifier: Apache-2.0
"""`python -m bench COMMAND ...`: picks the benchmark; each one reads its own arguments."""

import importlib
import sys

COMMANDS = {
    "hetgat": "train HetGAT-TA with every implementation of gather and scatter-add, side by side",
}


def main(arguments: list[str]) -> int:
    """Run the command named first; print the list for anything else."""
    if not arguments or arguments[0] not in COMMANDS:
        print("usage: python -m bench COMMAND [--help]\n")
        for name, purpose in COMMANDS.items():
            print(f"  {name:8s} {purpose}")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    return importlib.import_module(f"bench.{arguments[0]}").main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
