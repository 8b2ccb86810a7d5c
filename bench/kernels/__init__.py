# SPDX-License-Identifier: Apache-2.0
"""`python -m bench ops`: gather and scatter-add beside their limits and their peers."""
