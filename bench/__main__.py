# SPDX-License-Identifier: Apache-2.0
"""`python -m bench COMMAND ...`: picks the benchmark; each one reads its own arguments."""

import importlib
import sys

COMMANDS = {
    "hetgat": "train HetGAT-TA with every implementation of gather and scatter-add, side by side",
    "gat": "train the graph attention network on Cora and Citeseer: accuracy and repeated bits",
    "ops": "gather and scatter-add beside their limits, their targets and their peers",
    "fused": "products, attention and segment ops on graphs beside limits, targets and peers",
    "partition": "what parts of a road network hold and send, from 1 to 1024 parts",
    "plan": "building a plan and looking one up",
}
MODULES = {  # where the name is not it
    "fused": "bench.fused.cli",
    "gat": "bench.citations.cli",
    "ops": "bench.kernels.cli",
    "plan": "bench.plan_build",
}


def main(arguments: list[str]) -> int:
    """Run the command named first; print the list for anything else."""
    if not arguments or arguments[0] not in COMMANDS:
        print("usage: python -m bench COMMAND [--help]\n")
        for name, purpose in COMMANDS.items():
            print(f"  {name:10s} {purpose}")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    module = MODULES.get(arguments[0], f"bench.{arguments[0]}")
    return importlib.import_module(module).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
