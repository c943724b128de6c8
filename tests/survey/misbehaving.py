"""A process for `models.survey.workers`: it repeats what it is told, and crashes or hangs when asked to."""

import json
import os
import signal
import sys
import time


def main() -> None:
    for line in sys.stdin:
        match line.strip():
            case "crash":
                print("terminate called: out of luck", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(60)
            case word:
                print(json.dumps({"said": word}), flush=True)


if __name__ == "__main__":
    main()
