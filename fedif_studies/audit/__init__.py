"""Audits of valuations: agreement, removal, detection, manipulation and stability."""
