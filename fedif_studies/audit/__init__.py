"""The evidence that a valuation is right: detection, removal, manipulation, stability."""
