"""Play one attempt of a run again, beside what was recorded of it.

python scripts/replay.py outputs/quickstart 30/2/5              # STEP/GROUP/INDEX, as in the viewer
python scripts/replay.py outputs/quickstart evaluation/44/7/0   # at a held-out problem
python scripts/replay.py outputs/quickstart 30/2/5 --edit       # its program changed in $EDITOR
python scripts/replay.py outputs/quickstart 30/2/5 --program mine.py judge.model=gpt-oss-120b

The run's own environment plays it: its executor, sandbox, judge and checks, with the attempt's own
seeds. Nothing is written. Exit status: 0, 1 where a failure of ours came between, 2 where it could
not be played.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("place", metavar="STEP/GROUP/INDEX")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--program", metavar="FILE", help="this one; - for standard input")
    ways.add_argument("--edit", action="store_true", help="the recorded one, in $EDITOR first")
    parser.add_argument("--json", action="store_true", help="both records, as one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the run's settings")
    arguments = parser.parse_intermixed_args()

    from flowright.app.replaying import Request, replay
    from flowright.core.errors import UserError

    program = None
    if arguments.program is not None:
        try:
            given = arguments.program
            program = sys.stdin.read() if given == "-" else Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{arguments.program}: cannot be read ({error})") from None
    return replay(
        Request(
            arguments.run,
            arguments.place,
            program,
            arguments.edit,
            arguments.json,
            arguments.overrides,
        )
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
