"""Tells that it has begun, and sleeps: python begun.py DIRECTORY. What the comparison of starts starts on each host."""

import os
import sys
import time

with open(os.path.join(sys.argv[1], str(os.getpid())), "w", encoding="utf-8"):
    pass
time.sleep(3600)
