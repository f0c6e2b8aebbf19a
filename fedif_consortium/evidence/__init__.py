"""What can be checked by somebody else later: keys, signatures, chained logs. No Flower.

Nothing here decides what anybody is due.
"""
