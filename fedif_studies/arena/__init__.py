"""Every strategy under every attack, and a page about it."""
