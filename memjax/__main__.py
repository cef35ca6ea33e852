"""`python -m memjax`, the command `memjax`."""

import sys

from memjax.cli.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
