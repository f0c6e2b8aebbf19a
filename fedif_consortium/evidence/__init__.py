"""What can be checked by somebody else later: keys, signatures, chained logs. No Flower.

`members.py` reads a folder; nothing else here reads or writes a file.
"""
