"""A model folder is data: no code of it runs, its chat template is bounded, and a template of the
user's takes its place."""

import json
import shutil
import time
from pathlib import Path

import pytest
from tiny_policy import checkpoint, tiny_policy
from transformers.utils.chat_template_utils import render_jinja_template

from flowright.app.preflight_checks import check_model
from flowright.config.grpo import GrpoSection
from flowright.config.policy import PolicySection
from flowright.core.errors import ConfigError, DataError, RunError, UserError
from flowright.environments.registry import make_config
from flowright.evaluation.trained_judge import find_judge, load_judge
from flowright.grpo.checkpoint import load_weights, save_checkpoint
from flowright.grpo.learner import Learner
from flowright.llm.chat import Message
from flowright.policy.chat_templates import render_template
from flowright.policy.export.folder import fill
from flowright.policy.export.model import export_of
from flowright.policy.export.source import find_source
from flowright.policy.model import load_policy
from flowright.policy.model_folders import load_tokenizer
from flowright.policy.sampling import template_text

TURNS = [{"role": "system", "content": "Sí {{ x }}"}, {"role": "user", "content": "2 < 3 \ud800"}]
LOOPS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
ENDLESS = {
    LOOPS: "2 s of computing",
    "{{ 'a' * 10**10 }}": "memory",
    "{{ '%10000000000d' % 1 }}{{ 1 }}": "memory",
    "{{ '{:>10000000000}'.format(1) }}": "memory",
    "{{ 'a'|center(10**10) }}": "memory",
    "{{ (('a' * 10**6)|list)|join('b' * 10**6) }}": "memory|computing",
    "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}":
        "memory",
    "{{ 'a' * 10**8 }}": "100,000,000 characters|computing",
    "x" * 10**8: "100,000,000 characters|computing",
}  # fmt: skip
REFUSED = {
    "{% for a in range(10**9) %}{% endfor %}": "Range too big",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}": "recursion",
    "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}": "Recursion",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{% for %}": "TemplateSyntaxError",
}
LIKE_OTHERS = (
    "{%- for m in messages %}{{ m.role }}|{{ m['content']|trim }}{{ eos_token }}\n{%- endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}",
    "{% generation %}{{ messages|tojson }}{% endgeneration %}{{ tools is none }}{{ documents }}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m|tojson(indent=2) }}"
    "{% break %}{% endfor %}{{ strftime_now('%Y')|length }}",
)


def test_templates_beyond_a_limit_are_one_line_and_the_next_one_renders() -> None:
    for template, why in ENDLESS.items():
        with pytest.raises(DataError, match=rf"the chat template .*({why}).*not used$"):
            render_template(template, TURNS, to_answer=True, variables={})
    for template, why in REFUSED.items():
        with pytest.raises(ValueError, match=why):
            render_template(template, TURNS, to_answer=True, variables={})
    assert render_template("{{ messages[0].role }}", TURNS, True, {}) == "system"


def test_templates_render_as_in_transformers() -> None:
    for template in LIKE_OTHERS:
        for to_answer in (True, False):
            (theirs,), _ = render_jinja_template(
                conversations=[TURNS],
                chat_template=template,
                add_generation_prompt=to_answer,
                eos_token="</s>",
            )
            assert render_template(template, TURNS, to_answer, {"eos_token": "</s>"}) == theirs


def test_a_template_that_ends_later_is_named_with_its_model(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(checkpoint())
    tokenizer.chat_template = "{% if messages|length > 2 %}" + LOOPS + "{% endif %}ok"
    turn = Message("user", "q")
    assert template_text([turn], tokenizer, to_answer=True) == "ok"
    began = time.process_time()
    with pytest.raises(DataError, match=f"^{checkpoint()}: the chat template takes more than 2 s"):
        template_text([turn] * 3, tokenizer, to_answer=True)
    assert time.process_time() - began < 2  # the time is another process's


def with_code(folder: Path, file: str, ran: Path) -> Path:
    """A model whose ``file`` needs a class of the folder."""
    shutil.copytree(checkpoint(), folder)
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / file).read_text())
    if file == "config.json":
        config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    else:
        config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}
        kind = json.loads((folder / "config.json").read_text()) | {"model_type": "x"}
        (folder / "config.json").write_text(json.dumps(kind))
    (folder / file).write_text(json.dumps(config))
    return folder


def test_a_folder_that_needs_its_own_code_is_refused_by_name(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    config = with_code(tmp_path / "config", "config.json", ran)
    tokens = with_code(tmp_path / "tokens", "tokenizer_config.json", ran)
    adapter = tmp_path / "adapter"
    tiny_policy().save(adapter)
    about = json.loads((adapter / "adapter_config.json").read_text())
    about["base_model_name_or_path"] = str(config)
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    refused = r"config.json names Python code of its own \(auto_map\), which is never run here"
    for load, why in (
        (lambda: load_policy(str(config), PolicySection(device="cpu"), 0), refused),
        (lambda: load_tokenizer(tokens), f"tokenizer_{refused}"),
        (lambda: export_of(find_source(config), None, None, merge=True), refused),
        (lambda: export_of(find_source(adapter), None, None, merge=True), refused),
        (lambda: load_judge(find_judge(config), "cpu"), refused),
    ):
        with pytest.raises(UserError, match=why) as error:
            load()
        assert len(str(error.value).splitlines()) == 1
    assert not ran.exists()


def test_other_code_that_a_config_names_is_refused(tmp_path: Path) -> None:
    for key, value, why in (
        ("attn_implementation", "kernels-community/flash-attn", "the kernel kernels-community/fl"),
        ("experts_implementation", "somebody/experts", "the kernel somebody/experts"),
        ("quantization_config", {"quant_method": "aqlm"}, "cannot be loaded here"),
    ):
        folder = tmp_path / key
        shutil.copytree(checkpoint(), folder)
        config = json.loads((folder / "config.json").read_text()) | {key: value}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=why):
            load_policy(str(folder), PolicySection(device="cpu"), 0)
    folder = tmp_path / "class"
    shutil.copytree(checkpoint(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["AutoModelForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="'AutoModelForCausalLM' is no model"):
        load_judge(find_judge(folder), "cpu")


def test_a_template_of_ones_own_trains_is_saved_and_exported(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}Q: {{ m.content }}\n{% endfor %}A:")
    policy = tiny_policy(chat_template=file)
    assert template_text([Message("user", "2?")], policy.tokenizer, True) == "Q: 2?\nA:"
    save_checkpoint(tmp_path, 1, policy, Learner(policy, GrpoSection(), 1.0, 0), 2)
    step = tmp_path / "step_000001"
    load_weights(step, tiny_policy(chat_template=file))
    source = find_source(step)
    for merge in (True, False):
        export = export_of(source, None, None, merge)
        out = tmp_path / f"out-{merge}"
        out.mkdir()
        fill(export, out, policy.causal_lm.dtype, 10**9, alone=not merge, kept=not merge)
        assert load_tokenizer(out if merge else checkpoint(), out / "chat_template.jinja")
        assert (out / "chat_template.jinja").read_text() == file.read_text()
    assert load_tokenizer(tmp_path / "out-True").chat_template == file.read_text()
    assert load_judge(find_judge(step), "cpu").policy.tokenizer.chat_template == file.read_text()
    with pytest.raises(RunError, match="this policy has that of its model"):
        load_weights(step, tiny_policy())
    file.write_text("{{ messages[0].content }}")
    with pytest.raises(RunError, match=r"chat template [0-9a-f]{16}, this policy has [0-9a-f]{16}"):
        load_weights(step, tiny_policy(chat_template=file))


def test_a_template_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    for text, why in (
        (None, "No such file"),
        (b"", "an empty file"),
        (b"\xff", "UTF-8"),
        (b"{% for m in messages %}", "TemplateSyntaxError"),
        (b"{{ messages|nosuch }}", "No filter named"),
        (LOOPS.encode(), "2 s of computing"),
        (b"x" * 5_000_000, "larger than"),
    ):
        if text is not None:
            file.write_bytes(text)
        with pytest.raises(ConfigError, match=rf"^policy.chat_template: {file}: .*{why}") as error:
            load_tokenizer(checkpoint(), file)
        with pytest.raises(ConfigError, match=why):  # before the embedded policy is made
            check_model(make_config({"policy": {"chat_template": file}}))
        assert len(str(error.value).splitlines()) == 1


def test_files_that_a_library_stumbles_over_are_one_line(tmp_path: Path) -> None:
    config = json.loads((checkpoint() / "config.json").read_text())
    for number, (file, text) in enumerate(
        (
            ("config.json", "null"),
            ("config.json", "[" * 200_000),
            ("config.json", json.dumps(config | {"hidden_size": "x"})),
            ("config.json", json.dumps(config | {"num_attention_heads": 0})),
            ("config.json", json.dumps(config | {"dtype": "evil"})),
            ("tokenizer_config.json", "[]"),
            ("tokenizer.json", "[]"),
            ("model.safetensors", ""),
        )
    ):
        folder = tmp_path / str(number)
        shutil.copytree(checkpoint(), folder)
        (folder / file).write_text(text)
        with pytest.raises(ConfigError, match=f"{folder}.*: ") as error:
            load_policy(str(folder), PolicySection(device="cpu"), 0)
        assert len(str(error.value).splitlines()) == 1
