# SPDX-License-Identifier: Apache-2.0
"""One module a family of ops; each family is closed under differentiation."""
