"""Groups of ``fedif`` commands, one file each; a command imports what it needs when it is called.

So the command line starts fast, and shows its help without the extra ``consortium``.
"""
