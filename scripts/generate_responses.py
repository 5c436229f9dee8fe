#!/usr/bin/env python3
"""Ask a model for responses to the prompts of a file, parquet or JSON Lines; parquet comes out.

    python scripts/generate_responses.py --model smollm2-135m --data-path val.parquet \\
        --output-path out.parquet --n-samples 8
    python scripts/generate_responses.py --server gpt-oss-120b --data-path val.parquet \\
        --output-path out.parquet
    VLLM_BASE_URL=http://a:8000/v1,http://b:8000/v1 VLLM_MODEL=Qwen/Qwen3-8B \\
        python scripts/generate_responses.py --data-path val.parquet --output-path out.parquet

A call that was cut off goes on where it stopped. docs/instructions.md says what is written.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one
    from flowright.evaluation.responses.response_options import (
        add_drawing_options,
        add_model_options,
    )

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-path", type=Path, required=True, metavar="FILE", help="rows with prompts")
    add("--output-path", type=Path, required=True, metavar="FILE", help="a .parquet file")
    add("--prompt-key", default="prompt", metavar="COLUMN", help="texts or lists of messages")
    add("--response-key", default="responses", metavar="COLUMN", help="what is written")
    add("--start", type=int, default=0, metavar="ROW", help="the first row (0)")
    add("--limit", type=at_least_one, metavar="N", help="so many rows (all)")
    add("--overwrite", action="store_true", help="start again")
    add_drawing_options(parser, samples=8, temperature=0.7, top_p=0.8, top_k=20, max_tokens=4096)
    add_model_options(parser, ROOT / "config/aflow_llm.yaml", batch_size=8)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    import uvloop
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.evaluation.responses.generate import GenerationRequest, generate
    from flowright.evaluation.responses.response_options import (
        draw_settings,
        model_name,
        progress_bar,
    )

    console, errors = Console(), Console(stderr=True)
    try:
        request = GenerationRequest(
            named=model_name(options, lambda line: errors.print(line, markup=False)),
            settings=draw_settings(options),
            data=options.data_path,
            out=options.output_path,
            prompt_key=options.prompt_key,
            response_key=options.response_key,
            start=options.start,
            limit=options.limit,
            overwrite=options.overwrite,
        )
        with progress_bar(errors, "responses") as progress:
            done = uvloop.run(generate(request, progress))
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; replies are kept, the same command continues", file=sys.stderr)
        return 130
    for line in done.lines():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{options.output_path}", markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
