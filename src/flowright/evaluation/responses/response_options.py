"""Options of the command lines that ask a model, and their progress bar. Cheap to import, for
``--help``.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

from flowright.core.command_line import at_least_one
from flowright.core.errors import UserError
from flowright.evaluation.responses.response_models import DrawSettings, ModelName

N = TypeVar("N", int, float)
_AUTO, _DTYPES = "auto", ("auto", "float32", "bfloat16", "float16", "half")


def add_model_options(parser: argparse.ArgumentParser, llm_file: Path, batch_size: int) -> None:
    """Add the options that choose the model."""
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model", metavar="PATH_OR_NAME",
        help="loaded in this process: a folder, a name of the hub, or smollm2-135m")  # fmt: skip
    add("--server", metavar="NAME",
        help="a model of --llm-file (default: what VLLM_BASE_URL and VLLM_MODEL name)")  # fmt: skip
    add("--llm-file", type=Path, default=llm_file, metavar="FILE", help="names of served models")
    add("--batch-size", type=at_least_one, default=batch_size, metavar="N",
        help=f"prompts that are decoded at once in this process ({batch_size})")  # fmt: skip
    add("--max-model-len", type=at_least_one, metavar="N",
        help="tokens of prompt and response in this process (what the model has)")  # fmt: skip
    add("--dtype", default=_AUTO, choices=_DTYPES,
        help="of the weights in this process (auto: bfloat16 on a GPU, else float32)")  # fmt: skip
    add("--no-chat-template", action="store_true", help="in this process: the text as it is")
    theirs = parser.add_argument_group("of a vLLM server; refused where they need one")
    theirs.add_argument("--tp-size", type=at_least_one, default=1, metavar="N")
    theirs.add_argument("--gpu-mem-util", type=float, metavar="SHARE")
    theirs.add_argument("--trust-remote-code", action="store_true")
    theirs.add_argument("--disable-custom-all-reduce", action="store_true")


def add_drawing_options(
    parser: argparse.ArgumentParser,
    samples: int | None,
    temperature: float,
    top_p: float,
    top_k: int,
    max_tokens: int,
) -> None:
    """Add the sampling options with these defaults; ``samples`` None leaves its option out."""
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    if samples is not None:
        add("--n-samples", type=at_least_one, default=samples, metavar="N",
            help=f"of each prompt ({samples})")  # fmt: skip
    add("--temperature", type=float, metavar="T",
        help=f"0 is greedy (VLLM_TEMPERATURE, or {temperature:g})")  # fmt: skip
    add("--top-p", type=float, default=top_p, metavar="P", help=f"({top_p:g})")
    add("--top-k", type=int, default=top_k, metavar="K",
        help=f"of the K most likely tokens; -1: of all ({top_k})")  # fmt: skip
    add("--max-tokens", type=at_least_one, metavar="N",
        help=f"of a response (VLLM_MAX_TOKENS, or {max_tokens})")  # fmt: skip
    add("--seed", type=int, default=0, help="of every draw (0)")
    parser.set_defaults(usual_temperature=temperature, usual_max_tokens=max_tokens)


def draw_settings(options: argparse.Namespace) -> DrawSettings:
    """Return the sampling settings of the options. Raises UserError."""
    temperature: float | None = options.temperature
    max_tokens: int | None = options.max_tokens
    if temperature is None:
        temperature = _of_environment("VLLM_TEMPERATURE", float, options.usual_temperature)
    if max_tokens is None:
        max_tokens = _of_environment("VLLM_MAX_TOKENS", int, options.usual_max_tokens)
    problems = [
        *[f"--temperature {temperature}: 0 (greedy) or above"] * (not 0 <= temperature < 100),
        *[f"--top-p {options.top_p}: above 0, 1 at most"] * (not 0 < options.top_p <= 1),
        *[f"--top-k {options.top_k}: 1 or above, or -1 for all"] * (options.top_k < -1),
        *[f"VLLM_MAX_TOKENS={max_tokens}: 1 or above"] * (max_tokens < 1),
    ]
    if problems:
        raise UserError(*problems)
    return DrawSettings(
        samples=getattr(options, "n_samples", 1),
        temperature=temperature,
        top_p=options.top_p,
        top_k=max(options.top_k, 0),
        max_tokens=max_tokens,
        seed=options.seed,
    )


def _of_environment(variable: str, read: Callable[[str], N], default: N) -> N:
    given = os.environ.get(variable, "").strip()
    try:
        return read(given) if given else default
    except ValueError:
        raise UserError(f"{variable}={given}: a number") from None


def model_name(options: argparse.Namespace, note: Callable[[str], None]) -> ModelName:
    """Return the model of the options; ``note`` gets a line for each option of a server. Raises
    UserError for what cannot be done in this process."""
    here = options.model is not None
    problems: list[str] = []
    if here and options.tp_size > 1:
        problems.append(
            f"--tp-size {options.tp_size}: a model in this process is on one device; start "
            f"`vllm serve {options.model} --tensor-parallel-size {options.tp_size}`, name it in "
            "--llm-file or VLLM_BASE_URL, and leave --model out"
        )
    if here and options.trust_remote_code:
        problems.append(
            "--trust-remote-code: code of a model's repository is not run in this process; leave "
            "it out, or serve the model with vLLM and give --server"
        )
    if here and options.dtype in ("float16", "half"):
        problems.append(f"--dtype {options.dtype}: in this process float32 or bfloat16")
    if problems:
        raise UserError(*problems)
    served = [
        *[f"--tp-size {options.tp_size}"] * (options.tp_size > 1),
        *[f"--gpu-mem-util {options.gpu_mem_util}"] * (options.gpu_mem_util is not None),
        *["--disable-custom-all-reduce"] * options.disable_custom_all_reduce,
        *["--trust-remote-code"] * options.trust_remote_code,
        *[f"--dtype {options.dtype}"] * (not here and options.dtype != _AUTO),
        *[f"--max-model-len {options.max_model_len}"] * (not here and bool(options.max_model_len)),
    ]
    for option in served:
        note(f"note: {option}: an option to start a vLLM server with; ignored here")
    return ModelName(
        model=options.model,
        server=options.server,
        llm_file=options.llm_file,
        dtype=None if options.dtype == _AUTO else options.dtype,
        max_model_len=options.max_model_len,
        batch_size=options.batch_size,
        chat_template=not options.no_chat_template,
    )


_PROGRESS_LINES = 20


@contextmanager
def progress_bar(
    console: "Console", title: str
) -> Iterator[Callable[[int, int], Callable[[], None]]]:
    """Yield a function to call with the number done and the total; it returns a function to call
    after each item, from any thread. A bar on a terminal, some lines in a file."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True)

    def begin(done: int, total: int) -> Callable[[], None]:
        every, count = max(1, total // _PROGRESS_LINES), done
        if console.is_terminal:
            bars.start()
            bar = bars.add_task(title, total=total, completed=done)
            return lambda: bars.advance(bar)

        def advance() -> None:
            nonlocal count
            count += 1
            if count % every == 0 or count == total:
                console.print(f"{title}: {count:,} of {total:,}", markup=False)

        return advance

    try:
        yield begin
    finally:
        if bars.live.is_started:
            bars.stop()
