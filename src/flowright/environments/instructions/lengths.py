"""How long prompts are once the chat template is applied, and what becomes of those that are too
long. The tokens are counted by whoever has the tokenizer.
"""

from collections.abc import Callable, Sequence

from flowright.core.errors import DataError
from flowright.environments.instructions.config import InstructionsSection
from flowright.environments.instructions.tasks import InstructionTask
from flowright.environments.judging.lengths import lengths_of


def fit(
    tasks: Sequence[InstructionTask],
    tokens: Callable[[InstructionTask], int],
    limit: int,
    section: InstructionsSection,
) -> tuple[list[InstructionTask], list[str]]:
    """The tasks that can be asked in ``limit`` tokens, and what is told of the others. Those that
    the chat template refuses are left out. Raises DataError with ``overlong: error``, and where
    none is left."""
    counted: list[tuple[InstructionTask, int]] = []
    refused: list[str] = []
    for task in tasks:
        try:
            counted.append((task, tokens(task)))
        except DataError as error:
            refused.append(f"{task.id}: {'; '.join(error.problems)}")
    if not counted:
        raise DataError(*refused[:1], f"the chat template refuses all {len(tasks)} prompts")
    lengths = lengths_of([count for _, count in counted], limit)
    over = [f"{task.id}: {count:,} tokens" for task, count in counted if count > limit]
    if over and section.overlong == "error":
        raise DataError(
            *over[: section.show_left_out],
            f"{len(over):,} prompts have more than {limit:,} tokens (policy.max_prompt_tokens); "
            "raise it, or set instructions.overlong to drop or cut",
        )
    cuts = section.overlong == "cut"
    kept = [task for task, count in counted if cuts or count <= limit]
    if not kept:
        raise DataError(
            *over[: section.show_left_out],
            f"all {len(counted):,} prompts have more than {limit:,} tokens; raise "
            "policy.max_prompt_tokens, or set instructions.overlong: cut",
        )
    what = "cut where they are asked" if cuts else "left out"
    lines = [f"{lengths}{f', {what}' * bool(over)}"]
    lines += [f"  {line}" for line in over[: section.show_left_out]]
    if refused:
        lines.append(f"{len(refused):,} refused by the chat template, left out")
        lines += [f"  {line}" for line in refused[: section.show_left_out]]
    return kept, lines
