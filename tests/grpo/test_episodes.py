"""Episodes of several turns: what is sampled is what is trained, through the whole loop."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from toy_run import Toy, configured, train

from flowright.environments.episode import Episode, Observation


@dataclass
class Talk(Toy):
    """Answers every turn with the length of what was written; ends early at an even one."""

    turns: int = 3
    config: Any = field(default_factory=configured)
    answers_at_once: ClassVar[bool] = True

    @property
    def max_turns(self) -> int:
        return self.turns

    async def respond(self, episode: Episode) -> Observation | None:
        count = len(episode.sample.text)
        if episode.turns[-1].sample.token_ids[0] % 5 == 0:
            return None
        return Observation(f"{count} characters", memory={"count": count}, reward=0.1)


async def test_an_environment_of_several_turns_trains(tmp_path: Path) -> None:
    done = await train(tmp_path / "run", Talk())
    rows = [row for row in done.metrics if "turns/mean" in row]
    assert len(rows) == 4
    for row in rows:
        assert row["tokens/trained_as_sampled"] == 1.0
        assert 1 < row["turns/mean"] < 3 and row["turns/max"] == 3
        assert row["turns/stop/done"] + row["turns/stop/max_turns"] == 1
        for turn in (1, 2, 3):
            assert row[f"policy/logprob_gap/turn_{turn}"] < 1e-4
