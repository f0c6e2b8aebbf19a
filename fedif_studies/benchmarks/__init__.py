"""Speed beside peers: a script for each figure of the page."""
