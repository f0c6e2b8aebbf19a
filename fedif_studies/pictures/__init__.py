"""Pictures as SVG files that are the same, byte for byte, on every machine."""
