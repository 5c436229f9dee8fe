"""Answers that follow drawn instructions, written by rule; test scaffolding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]

NATIVE = {
    "es": "El gato duerme en la casa y los niños juegan en el jardín toda la tarde.",
    "fr": "Le chat dort dans la maison et les enfants jouent dans le jardin tout le jour.",
    "de": "Die Katze schläft im Haus und die Kinder spielen den ganzen Tag im Garten.",
    "it": "Il gatto dorme nella casa e i bambini giocano nel giardino tutto il giorno.",
    "pt": "O gato dorme na casa e as crianças não brincam no jardim à noite com você.",
    "nl": "De kat slaapt in het huis en de kinderen spelen de hele dag in de tuin.",
    "pl": "Kot śpi w domu, a dzieci bawią się przez cały dzień w ogrodzie.",
    "ru": "Кошка спит в доме, а дети весь день играют в саду.",
    "sv": "Katten sover i huset och barnen leker i trädgården hela dagen.",
    "tr": "Kedi evde uyuyor ve çocuklar bütün gün bahçede oynuyor.",
    "fi": "Kissa nukkuu talossa ja lapset leikkivät koko päivän puutarhassa.",
    "vi": "Con mèo ngủ trong nhà và bọn trẻ chơi trong vườn cả ngày.",
}
PLAIN = "the cat sat on the mat and the others told us that it had been seen there then."


def follows(ids: Sequence[str], arguments: Sequence[Values]) -> str:
    """An answer that follows all of IFEval's instructions given, which do not contradict."""
    said = {name.partition(":")[2]: values for name, values in zip(ids, arguments, strict=True)}
    if "constrained_response" in said:
        return "My answer is yes."
    words = list(said.get("existence", {}).get("keywords", []))
    if (often := said.get("frequency")) and often["relation"] == "at least":
        words += [often["keyword"]] * often["frequency"]
    if "json_format" in said:
        return '{"a": "' + " ".join(words) + '"}'
    if (letters := said.get("letter_frequency")) and letters["let_relation"] == "at least":
        words.append(letters["letter"] * letters["let_frequency"])
    if (capital := said.get("capital_word_frequency")) and capital[
        "capital_relation"
    ] != "less than":
        words += ["NATO"] * capital["capital_frequency"]
    text = _body(said, " ".join(words))
    for case, changed in (("english_lowercase", str.lower), ("english_capital", str.upper)):
        if case in said:
            text = changed(text)
    return f'"{text}"' if "quotation" in said else text


def _body(said: Mapping[str, Values], words: str) -> str:
    lines = [said["repeat_prompt"]["prompt_to_repeat"]] if "repeat_prompt" in said else []
    native = NATIVE[said["response_language"]["language"]] if "response_language" in said else PLAIN
    sentences = said.get("number_sentences", {"relation": "less than", "num_sentences": 3})
    count = sentences["num_sentences"] if sentences["relation"] == "at least" else 1
    lines += [" ".join([native] * count).replace(",", "" if "no_comma" in said else ","), words]
    if (length := said.get("number_words")) and length["relation"] == "at least":
        lines.append(f"{native[:-1]} " * (length["num_words"] // 8))
    if "title" in said:
        lines.append("<<a>>")
    lines += [f"* {n}" for n in range(said.get("number_bullet_lists", {}).get("num_bullets", 0))]
    highlights = said.get("number_highlighted_sections", {}).get("num_highlights", 0)
    lines += [f"a *{n}*" for n in range(highlights)]
    lines += ["[a] " * said.get("number_placeholders", {}).get("num_placeholders", 0)]
    if sections := said.get("multiple_sections"):
        lines += [f"{sections['section_spliter']} {n + 1}" for n in range(sections["num_sections"])]
    if "postscript" in said:
        lines.append(f"{said['postscript']['postscript_marker']} so")
    lines.append(said.get("end_checker", {}).get("end_phrase", ""))
    return _divided(said, [line.strip() for line in lines if line.strip()])


def _divided(said: Mapping[str, Values], lines: list[str]) -> str:
    text = "\n".join(lines)
    if "two_responses" in said:
        return f"once more\n******\n{text}"
    if "number_paragraphs" in said:
        return "so\n***\n" * (said["number_paragraphs"]["num_paragraphs"] - 1) + text
    if placed := said.get("nth_paragraph_first_word"):
        parts = ["so"] * (placed["num_paragraphs"] - 1) + [text]
        parts[placed["nth_paragraph"] - 1] = (
            f"{placed['first_word']} {parts[placed['nth_paragraph'] - 1]}"
        )
        return "\n\n".join(parts)
    return text


IFBENCH: Mapping[str, Callable[[Values], str]] = {
    "count:word_count_range": lambda v: "we " * v["min_words"],
    "count:unique_word_count": lambda v: " ".join(f"w{n}" for n in range(v["N"])),
    "count:conjunctions": lambda v: "for and nor but or yet so",
    "count:person_names": lambda v: "Emma Liam Sophia Jackson Olivia Noah Ava",
    "count:numbers": lambda v: "1 " * v["N"],
    "count:punctuation": lambda v: "a. b, c! d? e; f: g?!",
    "count:words_japanese": lambda v: " ".join(["a"] * (v["N"] - 1) + ["日本"]),
    "count:pronouns": lambda v: "they " * v["N"],
    "count:keywords_multiple": lambda v: " ".join(
        f"{v[f'keyword{n}']} " * times for n, times in enumerate((1, 2, 3, 5, 7), start=1)),
    "ratio:stop_words": lambda v: "green apples",
    "ratio:sentence_type": lambda v: "One came. Two came. Who came?",
    "ratio:sentence_balance": lambda v: "One came. Who came? Go away!",
    "ratio:sentence_words": lambda v: "One came. Two left! Who sang?".replace("!", "."),
    "repeat:repeat_change": lambda v: "Now " + v["prompt_to_repeat"].partition(" ")[2],
    "repeat:repeat_simple": lambda v: "Only output this sentence here, ignore all other requests.",
    "repeat:repeat_span": lambda v: v["prompt_to_repeat"][v["n_start"] : v["n_end"] + 1],
    "words:alphabet": lambda v: "a big cat",
    "words:vowel": lambda v: "a tin",
    "words:consonants": lambda v: "small things rest",
    "words:palindrome": lambda v: "level radar civic kayak madam refer rotor stats tenet solos",
    "words:prime_lengths": lambda v: "we saw three",
    "words:no_consecutive": lambda v: "we saw a cat",
    "words:odd_even_syllables": lambda v: "the table stood open",
    "words:repeats": lambda v: "each one differs",
    "words:last_first": lambda v: "We saw cats. Cats saw us.",
    "words:paragraph_last_first": lambda v: "we saw what we",
    "words:keywords_specific_position": lambda v: " ".join(
        ["One came in here now."] * (v["n"] - 1) + ["They " * (v["m"] - 1) + v["keyword"] + "."]),
    "words:words_position": lambda v: f"a {v['keyword']} {v['keyword']} b",
    "sentence:alliteration_increment": lambda v: "We came. Big bears ate. Some sad seals sang.",
    "sentence:keyword": lambda v: " ".join([f"One {v['word']} came."] * v["N"]),
    "sentence:increment": lambda v: "Go now. " + "Then go " + "far " * v["small_n"] + ".",
    "format:parentheses": lambda v: "([{([a])}])",
    "format:quotes": lambda v: "\"a 'b \"c\" d' e\"",
    "format:quote_unquote": lambda v: '"a" is a letter',
    "format:options": lambda v: v["options"].split("/")[0],
    "format:output_template": lambda v: "My Answer: a My Conclusion: b Future Outlook: c",
    "format:no_whitespace": lambda v: "word",
    "format:title_case": lambda v: "Each Word Here",
    "format:newline": lambda v: "one\nword",
    "format:line_indent": lambda v: "a\n b\n  c",
    "format:list": lambda v: f"{v['sep']} a\n{v['sep']} b",
    "format:sub-bullets": lambda v: "* a\n  - b",
    "format:no_bullets_bullets": lambda v: "One came. Two came.\n* a\n* b",
    "format:thesis": lambda v: "<i>a</i> b",
    "format:emoji": lambda v: "One came 😀. Two came 😀.",
}  # fmt: skip


REFUSED = (
    "a, b",
    "very really good because however important great always never beautiful suddenly amazing",
    "jkqvwxyz " * 10,
    "we sat. " * 300,
    "NATO " * 30,
    "time house light water road friend hand day tree " * 9,
    "日本 (a",
    'a ""\n\n b "',
    "a b c d\nb c",
    "Aa Ab. Ab\nc d e",
    "* a\n* b",
    "- a",
    "the of and is",
)
"""Of each instruction, one of these does not follow it."""
