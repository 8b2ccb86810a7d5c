# SPDX-License-Identifier: Apache-2.0
"""`python -m bench fused`: products, attention and segment ops beside limits and peers."""
