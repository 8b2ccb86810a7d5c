# SPDX-License-Identifier: Apache-2.0
"""The list of all implementations; importing their libraries is left to their first line."""

from __future__ import annotations

from bench.fused import peers_cusparse, peers_host, peers_jax, peers_torch
from bench.kernels.peer import Peer

SUBJECT = peers_jax.SUBJECT
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (*peers_jax.PEERS, *peers_cusparse.PEERS, *peers_torch.PEERS, *peers_host.PEERS)
}
TITLES = {name: peer.title for name, peer in PEERS.items()}
