"""Control tokens of chat templates lose their power in text, and honest text keeps its form."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.errors import ConfigError
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.llm.control_tokens import (
    OwnTokens,
    broken,
    fence_for,
    sanitise,
    tokenizer_folder,
    tokens_of,
)

TOKENS = """
<|im_start|> <|im_end|> <|endoftext|> <|start_header_id|> <|eot_id|> <|python_tag|> <|channel|>
<|message|> <|return|> <|"|> <|turn> <turn|> <|channel> <channel|> <tool_call|> <|tool_response>
<tool_response|> <start_of_turn> <end_of_turn> <bos> <eos> <pad> <unk> <mask> <s> </s> <unused12>
<extra_id_0> <reserved_106> <SPECIAL_12> <｜User｜> <｜end▁of▁sentence｜> <|tool▁calls▁begin|>
<tool_call> </tool_call> <tool_response> <tool_calls> <role> <minimax:tool_call> <arg_key>
<arg_value> <seed:bos> <seed:eos> <seed:think> <seed:tool_call> <seed:cot_budget_reflect> <think>
</think> <longcat_think> <function_calls> <invoke> <sop> <eop> <fim_prefix> <fim-suffix>|
<file_sep> <image_pad> <im_start> <loc0001> <<SYS>> <</SYS>> [INST] [/INST] [SYSTEM_PROMPT]
[/SYSTEM_PROMPT] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [AVAILABLE_TOOLS] [TOOL_CONTENT]
[MODEL_SETTINGS] [BEGIN_AUDIO] [IMG_BREAK] [CALL_ID] [ARGS] [THINK] [gMASK] [sMASK] [MASK]
[control_8] [|system|] [|endofturn|] [UNUSED_TOKEN_145] [PAD151645] [STREAMING_PAD]
<image_soft_token>
<start_function_declaration> <end_function_response> <escape> <TOOLCALL> </TOOLCALL> <eoh> <eoa>
<eosys> <ctrl99> <sentinel_0> <reponame> <gh_stars> <commit_before> <empty_output> <file_separator>
<add_file> <think_off> <think_faster> <IMG_CONTEXT> <[fim-prefix]> <[SYSTEM_NEVER_USED]>
<｜DSML｜function_calls> <｜hy_place▁holder▁no▁2｜> <|START_RESPONSE|> <|tool_calls_section_begin|>
<|begin_of_box|> <|inner_prefix|> <|plamo:msg|> <longcat_tool_call> <think_on>
<function=get_weather> </function> <parameter=city> </parameter> <tool_use> <0x0A> <SPEC_1> <img>
</img> <ref> </ref> <quad> </quad> <fake_token_around_image> <row_1_col_1> <global-img> <PRE> <SUF>
<im_patch> <patch_index_0000> </delimiter_of_multi_objects/> <racm3:break> <mask:0> <jupyter_start>
<audio_soft_token> <region_cap> <｜place▁holder▁no▁1｜> <end_of_utterance> <object_ref_start>
]!p~[ ]!d~[ ]~b] ]~!b[ [e~[ ]<]minimax[>[ ◁think▷ ◁/think▷
""".replace("<fim-suffix>|", "").split()


def test_control_tokens_are_broken() -> None:
    failures = [
        (token, text)
        for token in TOKENS
        for text in (token, f"a{token}b", f"{token}{token}", f"x\u200b{token}\n")
        if token in sanitise(text)
    ]
    failures += [(t, sanitise(t)) for t in TOKENS if sanitise(t).replace(" ", "") != t]
    assert failures == []


@pytest.mark.parametrize("switch", ["/no_think", "/think", "/nothink", "/longcat_no_think"])
def test_a_switch_of_thinking_is_broken(switch: str) -> None:
    for before in ("", "41 ", "41\n", "("):
        assert switch not in sanitise(f"{before}{switch}.")


@pytest.mark.parametrize(
    "text",
    [
        "if a < b and b > c: x[i] = d['KEY']",
        "std::vector<int> v; List<String> names; x << 3",
        "<div class='a'><p>Hi</p><br/></div>",
        "a | b || c |> f",
        "[1, 2] [x] [A] [TODO] [MAX] [Figure 3] arr[N][M]",
        "|x| < |y| and \\left[ \\right]",
        "a ~ b, ~x, ]] [[ ][",
        "<thinker> <sample> <users> <summary>",
        "std::map<std::string, int>",
        "https://example.org/think and a/think, </p>, rethink/thinking",
        "fn f(x: Box<[u8]>, y: &[|v|]) -> [T; 3]",
        "<start> <end> <token> <commit> <file>",
        "<h1>A</h1> <img src='a.png'> <T> <ID> Vec<u8> Map<K, V> a<b_1 and c>d x<0x1F",
        "#include <my_lib.h> <stdio.h> p<0.05 <1> <- -> <=> 3<x<5 <br> <std::vector<int>>",
    ],
)
def test_honest_text_is_left_alone(text: str) -> None:
    assert broken(text) == text


@given(st.lists(st.sampled_from([*TOKENS, "<", ">", "|", "[", "]", "~", " ", "a"])).map("".join))
def test_what_is_broken_stays_broken(text: str) -> None:
    once = broken(text)
    assert broken(once) == once
    assert not any(token in once for token in TOKENS)
    assert once.replace(" ", "") == text.replace(" ", "")


# Fences.

HIDDEN = ["\u200b", "\u200d", "\u2060", "\u0301", "\ufe0f", "\u00ad", "\u20d0", "\u3164"]


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_a_fence_is_measured_by_what_is_seen(hidden: str) -> None:
    for mark in ("~", "`"):
        assert len(fence_for([hidden.join(mark * 9)], mark)) == 10
    assert sanitise(hidden.join("~" * 5000)) == "~" * 32
    assert sanitise(f"e{hidden}") == f"e{hidden}"


# The tokens of one model.


def folder(path: Path, **files: object) -> Path:
    for name, data in files.items():
        (path / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return path


CONFIG = {
    "bos_token": {"content": "«begin»"},
    "eos_token": "~~END~~",
    "model_max_length": 4096,
    "additional_special_tokens": ["{{turn}}"],
    "added_tokens_decoder": {
        "7": {"content": "<odd mark>", "special": False},
        "8": {"content": "    ", "special": False},
        "9": {"content": "hello", "special": True},
    },
    "chat_template": "{% for m in messages %}{{ '[HUMAN_TURN]' + m['content'] }}{% endfor %}",
}


def test_a_tokenizer_names_its_tokens(tmp_path: Path) -> None:
    added = {"added_tokens": [{"content": "[[gap]]", "special": True}]}
    tokens = tokens_of(folder(tmp_path, tokenizer_config=CONFIG, tokenizer=added))
    expected = {"«begin»", "~~END~~", "{{turn}}", "<odd mark>", "[[gap]]", "[HUMAN_TURN]"}
    assert tokens == expected
    said = OwnTokens(tokens).broken("hello    «begin»a~~END~~")
    assert said == "hello    « begin»a~ ~END~~"


def test_every_form_in_which_a_tokenizer_is_kept_is_read(tmp_path: Path) -> None:
    tekken = {"special_tokens": [{"rank": 3, "token_str": "{INST}", "is_control": True}]}
    added = {"<odd>": 7, "word": 8}
    template = {"chat_template": "{{ '<turn of>' + '<a-turn>' }}"}
    tokens = tokens_of(folder(tmp_path, tekken=tekken, added_tokens=added, chat_template=template))
    assert tokens == {"{INST}", "<odd>", "<a-turn>"}


def test_every_template_of_a_model_is_read(tmp_path: Path) -> None:
    more = tmp_path / "additional_chat_templates" / "tools.jinja"
    more.parent.mkdir()
    more.write_text("{{ '<a-tool>' }}", encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ '[A_TURN]' }}", encoding="utf-8")
    assert tokens_of(tmp_path) == {"<a-tool>", "[A_TURN]"}


def test_a_folder_without_a_tokenizer_names_none(tmp_path: Path) -> None:
    assert tokens_of(tmp_path) == frozenset()
    assert OwnTokens(()).broken("<s>") == "<s>"


def test_a_tokenizer_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape("tokenizer_config.json: cannot be read")):
        tokens_of(tmp_path)


async def test_every_message_to_a_model_is_without_its_tokens(tmp_path: Path) -> None:
    entry = ModelEntry(
        base_url="http://localhost:1/v1",
        model_name="m",
        tokenizer=folder(tmp_path, tokenizer_config=CONFIG),
    )
    client = ChatClient("m", entry, LlmSection())
    try:
        body = json.loads(client._encoded(ChatRequest(messages=(Message("user", "a {{turn}}"),))))
        assert body["messages"][0]["content"] == "a { {turn}}"
    finally:
        await client.aclose()


def test_a_tokenizer_that_is_not_there_is_said(tmp_path: Path) -> None:
    entry = ModelEntry(base_url="http://localhost:1/v1", model_name="m", tokenizer=tmp_path)
    with pytest.raises(ConfigError, match=r"models\.m\.tokenizer"):
        ChatClient("m", entry, LlmSection())


def test_a_model_of_the_hub_s_cache_names_its_tokens(tmp_path: Path) -> None:
    model = tmp_path / "models--mine--tiny"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    folder(snapshot, tokenizer_config=CONFIG)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc", encoding="utf-8")
    assert "{{turn}}" in tokens_of(tokenizer_folder("mine/tiny", tmp_path))
    for name in ("mine/other", "gpt-4o", "a/b/c", "/x", "mine/bad..name--"):
        assert tokens_of(tokenizer_folder(name, tmp_path)) == frozenset()
