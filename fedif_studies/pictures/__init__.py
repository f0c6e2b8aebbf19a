"""Pictures as SVG, whose text is the same wherever it is written."""
