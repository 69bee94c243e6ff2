"""What is trained: assistant turns and their end-of-turn token, with and without markers in the template."""

from __future__ import annotations

from collections import Counter

import pytest
from transformers import PreTrainedTokenizerFast

from rankloom.data.encoding import encode_records
from rankloom.data.tokenizer import train_tokenizer
from rankloom.errors import UserError
from rankloom.records import ChatRecord
from tests.data.chats import chats, record, tokenizer_with

LOOP = "{% for message in messages %}"
CHATML = (
    LOOP
    + "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
# Puts a default system turn in front and an empty thought into the last answer only, as newer families do.
THINKING = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    + LOOP
    + "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message['content'] | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# No generation prompt: the answer follows the closing bracket at once.
BRACKETS = (
    LOOP + "{% if message['role'] == 'user' %}{{ '<s>[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' </s>' }}{% endif %}{% endfor %}"
)
# No generation prompt either, but a header that the user side of the template ought to have written.
HEADERS = LOOP + "{{ '### ' + message['role'] + ':\n' + message['content'] + '</s>\n' }}{% endfor %}"

CHAT = record(
    ("user", "the fox"),
    ("assistant", "jumps over Zürich"),
    ("user", "in 東京"),
    ("assistant", "a lazy dog 東京"),
)


def trained_texts(tokenizer: PreTrainedTokenizerFast, chat: ChatRecord = CHAT) -> list[str]:
    """The stretches of text that are trained, decoded."""
    [(_, ids, trained)] = encode_records([chat], tokenizer, name="./model", skipped=Counter())
    stretches: list[list[int]] = []
    for place, (token, inside) in enumerate(zip(ids.tolist(), trained.tolist(), strict=True)):
        if inside and (place == 0 or not trained[place - 1]):
            stretches.append([])
        if inside:
            stretches[-1].append(token)
    return [tokenizer.decode(stretch) for stretch in stretches]


def test_own_template_has_markers() -> None:
    assert trained_texts(train_tokenizer(chats(30))) == ["jumps over Zürich<|end|>", "a lazy dog 東京<|end|>"]


TEMPLATES = {
    "chatml": (CHATML, CHATML_TOKENS, ["jumps over Zürich<|im_end|>", "a lazy dog 東京<|im_end|>"]),
    "thinking": (
        THINKING,
        CHATML_TOKENS,
        ["jumps over Zürich<|im_end|>", "<think>\n\n</think>\n\na lazy dog 東京<|im_end|>"],
    ),
    "brackets": (BRACKETS, ("<s>", "</s>"), [" jumps over Zürich </s>", " a lazy dog 東京 </s>"]),
    "headers": (HEADERS, ("</s>",), ["jumps over Zürich</s>", "a lazy dog 東京</s>"]),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_answers_are_found_without_markers(family: str) -> None:
    template, special_tokens, expected = TEMPLATES[family]
    assert trained_texts(tokenizer_with(template, *special_tokens, eos_token=special_tokens[-1])) == expected


def test_an_answer_that_opens_the_chat() -> None:
    tokenizer = tokenizer_with(CHATML, *CHATML_TOKENS, eos_token="<|im_end|>")
    chat = record(("assistant", "the dog"), ("user", "a dog"), ("assistant", "a dog"))
    assert trained_texts(tokenizer, chat) == ["the dog<|im_end|>", "a dog<|im_end|>"]


def test_text_that_repeats_is_found_at_its_own_place() -> None:
    tokenizer = tokenizer_with(CHATML, *CHATML_TOKENS, eos_token="<|im_end|>")
    chat = record(("user", "dog"), ("assistant", "dog"), ("user", "dog"), ("assistant", " dog \n"))
    assert trained_texts(tokenizer, chat) == ["dog<|im_end|>", " dog \n<|im_end|>"]


def test_markers_that_stop_before_the_end_of_turn_take_it_in() -> None:
    marked = CHATML.replace(
        "message['content'] +",
        "'' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] }}{% endgeneration %}"
        "{% else %}{{ message['content'] }}{% endif %}{{ ''+",
    )
    tokenizer = tokenizer_with(marked, *CHATML_TOKENS, eos_token="<|im_end|>")
    assert trained_texts(tokenizer) == ["jumps over Zürich<|im_end|>", "a lazy dog 東京<|im_end|>"]


def refusal(template: str, *special_tokens: str, chat: ChatRecord = CHAT) -> str:
    tokenizer = tokenizer_with(template, *special_tokens, eos_token=(*special_tokens, "<|end|>")[-1])
    with pytest.raises(UserError) as caught:
        list(encode_records([chat], tokenizer, name="./model", skipped=Counter()))
    return str(caught.value)


def test_all_trained_is_refused() -> None:
    message = refusal("{% generation %}" + CHATML + "{% endgeneration %}", *CHATML_TOKENS)
    assert message.startswith("chats.jsonl: all ")
    assert "tokens would be trained: users' text too is marked as the assistant's" in message
    assert "(chat template of ./model); check the {% generation %} markers in it" in message


def test_nothing_trained_is_refused() -> None:
    message = refusal("{% if false %}{% generation %}{% endgeneration %}{% endif %}" + CHATML, *CHATML_TOKENS)
    assert message.startswith("chats.jsonl: none of the ")
    assert "no text is marked as the assistant's (chat template of ./model)" in message


def test_a_template_without_end_of_turn_is_refused() -> None:
    message = refusal(LOOP + "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}")
    assert (
        "chats.jsonl, line 1: the chat template ends assistant turns with no special token: turn 2" in message
    )
    assert "(chat template of ./model)" in message


def test_the_next_turns_opening_is_no_end_of_turn() -> None:
    template = LOOP + "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}{% endfor %}"
    assert "ends assistant turns with no special token: turn 2" in refusal(template, "<|im_start|>")


def test_a_template_that_changes_the_text_is_refused() -> None:
    message = refusal(CHATML.replace("message['content']", "message['content'] | upper"), *CHATML_TOKENS)
    assert "line 1: the assistant turns cannot be told from the rest of the rendered chat: turn 2" in message
    assert "put {% generation %} markers in the template (chat template of ./model)" in message


def test_a_template_that_raises_names_the_record_and_can_be_skipped() -> None:
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system turn, please') }}{% endif %}"
        + CHATML
    )
    bad = record(("system", "x"), ("assistant", "y"), index=1)
    message = refusal(template, *CHATML_TOKENS, chat=bad)
    assert message == (
        "chats.jsonl, line 2: the chat template refuses the record: No system turn, please (chat template of "
        "./model)"
    )
    tokenizer = tokenizer_with(template, *CHATML_TOKENS, eos_token="<|im_end|>")
    skipped: Counter[str] = Counter()
    kept = list(encode_records([CHAT, bad], tokenizer, name="./model", skipped=skipped, bad_records="skip"))
    assert len(kept) == 1
    assert skipped == {"the chat template refuses the record": 1}
    with pytest.raises(UserError, match=r"no record is left; left out: 2 records \(the chat templ"):
        list(encode_records([bad, bad], tokenizer, name="./model", skipped=Counter(), bad_records="skip"))
