"""Questions answered with the library: which valuation is right, which strategy holds up."""
