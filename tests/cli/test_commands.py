"""The command flowright: its table, help and mistakes, and the scripts that call it."""

import subprocess
import sys
from pathlib import Path

import pytest

from flowright import __version__
from flowright.cli.commands import COMMANDS, main
from flowright.config.loading import PRESETS, find_config
from flowright.core.checkout import SCRIPTS, child_environment
from flowright.core.errors import ConfigError
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]


def test_every_script_is_a_call_of_the_command() -> None:
    for script, name in SCRIPTS.items():
        path = ROOT / ("monitor_training_live.py" if script == "monitor.sh" else script)
        assert f'sys.exit(run("{name}"))' in path.read_text(encoding="utf-8"), script
    assert {*SCRIPTS.values()} == {*COMMANDS} - {"study"}


def test_every_command_has_help_and_refuses_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, command in COMMANDS.items():
        assert main([*name.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"usage: flowright {name} " in shown and command.description in shown
        assert main([*name.split(), "--no-such-option"]) == 2
        assert "usage: " in capsys.readouterr().err


def test_commands_are_listed_and_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert main([]) == 2 and main(["judge"]) == 2
    assert "  judge exam " in capsys.readouterr().out
    for wrong, meant in (("trian", "train"), ("judge exm", "judge exam"), ("TRAIN", "train")):
        assert main(wrong.split()) == 2
        assert f"did you mean {meant}?" in capsys.readouterr().err
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"flowright {__version__}\n"


def test_help_of_every_command_imports_little() -> None:
    """One process for all: what its options need is loaded, no library that models need."""
    code = (
        "import sys; from flowright.cli.commands import COMMANDS, main\n"
        "assert not {'pydantic', 'rich', 'numpy'} & {*sys.modules}\n"
        "for name in COMMANDS: main([*name.split(), '--help'])\n"
        "heavy = {'torch', 'transformers', 'peft', 'pyarrow', 'datasets', 'matplotlib'}\n"
        "sys.exit(str(heavy & {*sys.modules}) if heavy & {*sys.modules} else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_configurations_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PRESETS.resolve() == ROOT / "config"
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "config/quickstart.yaml", "config/quickstart"):
        assert find_config(name) == PRESETS / "quickstart.yaml"
        assert load_config(name, ["seed=3"]).seed == 3
    assert find_config("study/quick") == PRESETS / "study/quick.yaml"
    assert find_config("config/plain_english.jsonl") == PRESETS / "plain_english.jsonl"
    assert find_config("mine.yaml") == Path("mine.yaml")
    with pytest.raises(ConfigError, match=r"quickstrat: neither .* did you mean quickstart\?"):
        find_config("quickstrat")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/quickstart.yaml").write_text("seed: 7")
    (tmp_path / "config/mine.yaml").touch()
    assert load_config("quickstart").seed == 7, "a user's own comes first"
    assert find_config("mine") == Path("config/mine.yaml")
