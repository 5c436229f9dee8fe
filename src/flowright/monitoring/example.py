"""One rollout on the terminal: what came out of it, and the first program or text of its blocks."""

from collections.abc import Sequence

from rich.text import Text

from flowright.environments.display import Display, blocks_of
from flowright.rendering import blocks
from flowright.rendering.glyphs import heading, shortened
from flowright.rendering.series import Record
from flowright.rendering.untrusted import one_line, visible

LONGEST = 20_000  # characters that are looked at


def sample(
    display: Display, rollouts: Sequence[Record], width: int, room: int | None
) -> list[Text]:
    """One rollout of the latest step in at most ``room`` lines; another position each step, so
    that it is not always the best one."""
    if not rollouts or (room is not None and room < 5):
        return []
    rollout = rollouts[int(rollouts[0].get("step") or 0) % len(rollouts)]
    shown = [
        block
        for block in blocks_of(display, rollout)
        if isinstance(block, blocks.Program | blocks.Text) and not _is_short(block)
    ]
    if not shown:
        return []
    body = _lines(shown[0])
    if room is not None and len(body) > room - 2:
        kept = room - 3
        body = [*body[:kept], Text(f"... {len(body) - kept} more lines", style="dim")]
    title = heading(f"Sample {one_line(shown[0].title, 60).lower()}")
    return [title, shortened(_outcome(rollout), width, "dim"), *body]


def _is_short(block: blocks.Program | blocks.Text) -> bool:
    return isinstance(block, blocks.Text) and block.short


def _lines(block: blocks.Program | blocks.Text) -> list[Text]:
    if isinstance(block, blocks.Program):
        return _highlighted(visible(block.source[:LONGEST]).strip("\n"))
    return [Text(line) for line in visible(block.text[:LONGEST]).strip("\n").split("\n")]


def _outcome(rollout: Record) -> str:
    task, verdict, gold = (rollout.get(key) or {} for key in ("task", "verdict", "gold"))
    reward = (rollout.get("reward") or {}).get("value")
    facts = [f"step {rollout.get('step')}", str(task.get("kind", ""))]
    facts.append("unscored" if reward is None else f"reward {reward:.2f}")
    if (rollout.get("failure") or {}).get("reason"):
        facts.append(f"failed: {rollout['failure']['reason']}")
    for who, opinion in (("judge", verdict.get("correct")), ("gold", gold.get("correct"))):
        if opinion is not None:
            facts.append(f"{who}: {'right' if opinion else 'wrong'}")
    return one_line(", ".join(fact for fact in facts if fact))


def _highlighted(code: str) -> list[Text]:
    # Imported here: pygments costs a tenth of a second that a screen without a sample saves.
    from rich.syntax import Syntax

    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    rows = list(syntax.highlight(code).split("\n", allow_blank=True))
    while rows and not rows[-1].plain.strip():
        rows.pop()
    return rows
