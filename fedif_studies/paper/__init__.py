"""The paper's tables as data, and what was measured beside them."""
