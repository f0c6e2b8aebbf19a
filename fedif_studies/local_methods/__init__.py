"""Local methods to compare with, named by import string as anybody's own are."""
