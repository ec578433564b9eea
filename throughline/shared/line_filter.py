"""Copy standard input to standard output without the lines that begin with a match of EXPRESSION:
`python line_filter.py EXPRESSION`. Run as a file, without the package, so that it starts at once.
"""

import re
import signal
import sys


def copy_lines(expression: str) -> None:
    """Copy each line as soon as it arrives, until the input ends.

    Ignore SIGTERM, so that the last lines of a process whose children are being ended are copied.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    unwanted = re.compile(expression.encode())
    for line in sys.stdin.buffer:
        if not unwanted.match(line):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    copy_lines(sys.argv[1])
