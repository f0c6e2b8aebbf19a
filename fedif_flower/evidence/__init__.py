"""What can be checked by somebody else later: keys, signatures, chained logs. No Flower, no I/O."""
