"""The signatures of all orders, a module for each subject.

Some replies repeat files that an older version may have written (the marker of a generation, the record of a run). Of
those, only the fields that are used are required.
"""
