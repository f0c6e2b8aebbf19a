"""Published local methods to compare with; a run config names them by import string."""
