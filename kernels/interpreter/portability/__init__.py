"""The rules of the portability lint."""
