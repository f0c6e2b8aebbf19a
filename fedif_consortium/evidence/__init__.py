"""Evidence that others can check later: keys, signatures, receipts and chained logs.

Nothing here decides what a member is paid.
"""
