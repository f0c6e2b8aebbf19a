"""A federation's everyday operations, on the server's host and on members' hosts.

This package makes keys and certificates, invites and registers members, and starts Flower's
programs. No private key leaves the host that made it, and none is ever overwritten.
"""
