"""A mark for tests of kernels that are interpreted."""

from __future__ import annotations

import pytest

# Experts of prompts that lie by tile have rows of no token, which hold whatever the memory held before. The interpreter multiplies
# by numpy, which warns of some of it; no such row is stored.
HOLDS_ANYTHING = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")
