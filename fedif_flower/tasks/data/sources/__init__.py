"""Sources of data sets, one file for each kind: they fetch and read a data set's files."""
