"""The fake trainer, as `python -m packaged.train` runs it."""

import sys

from .inner import main

if __name__ == "__main__":
    sys.exit(main())
