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

from flowright.core import arguments as add
from flowright.core.errors import UserError
from flowright.evaluation.responses.response_models import DrawSettings, ModelName

N = TypeVar("N", int, float)
_AUTO, _DTYPES = "auto", ("auto", "float32", "bfloat16", "float16", "half")


def add_model_options(parser: argparse.ArgumentParser, llm_file: Path, batch_size: int) -> None:
    """Add the options that choose the model."""
    group = parser.add_argument_group("model")
    add.text(group, "--model", "loaded in this process: a folder, a name of the hub, or "
             "smollm2-135m", "PATH_OR_NAME")  # fmt: skip
    add.text(group, "--server", "a model of --llm-file (default: what VLLM_BASE_URL and VLLM_MODEL "
             "name)", "NAME")  # fmt: skip
    add.path(group, "--llm-file", "names of served models", "FILE", default=llm_file)
    add.count(group, "--batch-size",
              f"prompts that are decoded at once in this process ({batch_size})",
              default=batch_size)  # fmt: skip
    add.count(group, "--max-model-len", "tokens of prompt and response in this process (what the "
              "model has)")  # fmt: skip
    add.choice(group, "--dtype", _DTYPES, "of the weights in this process (auto: bfloat16 on a "
               "GPU, else float32)", default=_AUTO)  # fmt: skip
    add.flag(group, "--no-chat-template", "in this process: the text as it is")
    theirs = parser.add_argument_group("of a vLLM server; refused where they need one")
    add.count(theirs, "--tp-size", default=1)
    add.number(theirs, "--gpu-mem-util", metavar="SHARE")
    add.flag(theirs, "--trust-remote-code")
    add.flag(theirs, "--disable-custom-all-reduce")


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
    if samples is not None:
        add.count(group, "--n-samples", f"of each prompt ({samples})", default=samples)
    add.number(group, "--temperature", f"0 is greedy (VLLM_TEMPERATURE, or {temperature:g})", "T")
    add.number(group, "--top-p", f"({top_p:g})", "P", default=top_p)
    add.whole(group, "--top-k", f"of the K most likely tokens; -1: of all ({top_k})", "K",
              default=top_k)  # fmt: skip
    add.count(group, "--max-tokens", f"of a response (VLLM_MAX_TOKENS, or {max_tokens})")
    add.whole(group, "--seed", "of every draw (0)", default=0)
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
