"""A federation's everyday operations, on the server's host and on a member's: files and commands.

Keys and certificates are made here, members invited and registered, Flower's programs started.
No private key leaves the host that made it, and none is ever overwritten.
"""
