"""What tests that start processes of their own need: where the doubles are, and a free port."""

import socket
from pathlib import Path

DOUBLES = Path(__file__).parent
SOURCE = DOUBLES.parents[1] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
