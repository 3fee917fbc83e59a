"""A process for the tests of `Child`: does what PROGRAM in its environment says."""

import os
import signal
import sys

match os.environ["PROGRAM"]:
    case "fail":
        sys.stdout.write("first line\nlast line\n")
        sys.exit(3)
    case "wait":
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        signal.pause()
    case "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        while True:
            signal.pause()
    case "environment":
        sys.stdout.write("\n".join(f"{name}={value}" for name, value in os.environ.items()))
