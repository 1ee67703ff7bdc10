# SPDX-License-Identifier: Apache-2.0
"""The program ``gs-train``; Ctrl-C in the seconds of its imports prints no traceback."""

import sys

from gs_train.machine.output import outliving_readers


def main() -> int:
    """See :func:`gs_train.cli.main`."""
    with outliving_readers():
        try:
            from gs_train import cli

            return cli.main()
        except KeyboardInterrupt:
            print("gs-train: stopped", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main())
