"""Decodes the records of a batch; mypyc compiles this module where there is a C compiler."""
