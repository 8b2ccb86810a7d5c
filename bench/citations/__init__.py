# SPDX-License-Identifier: Apache-2.0
"""`python -m bench gat`: the graph attention network of Velickovic et al. on citation graphs."""
