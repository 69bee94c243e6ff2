"""What is trained by data.train_on and by what the records say, and what a template may not leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rankloom.data.encoding import encode_records
from rankloom.data.template import ChatTemplate
from rankloom.data.tokenizer import train_tokenizer
from rankloom.errors import UserError
from rankloom.records import ChatRecord, Message, chat_of
from rankloom.records.record import BadRecordError
from tests.data.chats import chats, record, tokenizer_with
from tests.data.test_encoding import BRACKETS, CHAT, CHATML, CHATML_TOKENS, THINKING

# The tool part of a widely used family, made shorter: calls in tags, results as the user's.
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and message.tool_calls %}{{ '<|im_start|>assistant' }}"
    "{% if message.content %}{{ '\n' + message.content }}{% endif %}"
    "{% for call in message.tool_calls %}{% set call = call.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{ (call.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ARGUMENTS = '{"city": "Zürich", "days": 3}'
CALLING = {
    "messages": [
        {"role": "user", "content": "will it rain"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": ARGUMENTS}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "rain", "content": "no"},
        {"role": "assistant", "content": "it is dry"},
    ],
    "tools": [{"type": "function", "function": {"name": "rain", "description": "tells it"}}],
}
CALL_TEXT = (
    '<tool_call>\n{"name": "rain", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call><|im_end|>'
)


def of(value: object) -> ChatRecord:
    found = chat_of(value)
    return ChatRecord(0, found.messages, "chats.jsonl", 1, tools=found.tools)


def marked(template: str = CHATML) -> str:
    """ChatML with generation markers around the answers and their end token."""
    return template.replace(
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}",
        "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}",
    )


TEMPLATES = {"derived": CHATML, "marked": marked()}


def chatml(template: str) -> PreTrainedTokenizerFast:
    return tokenizer_with(template, *CHATML_TOKENS, eos_token="<|im_end|>")


def trained(tokenizer: PreTrainedTokenizerFast, chat: ChatRecord, train_on: str = "all_turns") -> list[str]:
    """The stretches of text that are trained, decoded."""
    found = encode_records([chat], tokenizer, name="./model", skipped=Counter(), train_on=train_on)
    [(_, ids, mask)] = found
    stretches: list[list[int]] = []
    for place, (token, inside) in enumerate(zip(ids.tolist(), mask.tolist(), strict=True)):
        if inside and (place == 0 or not mask[place - 1]):
            stretches.append([])
        if inside:
            stretches[-1].append(token)
    return [tokenizer.decode(stretch) for stretch in stretches]


def refusal(template: str, chat: ChatRecord, train_on: str = "all_turns") -> str:
    with pytest.raises(UserError) as caught:
        trained(chatml(template), chat, train_on)
    assert len(str(caught.value)) < 400
    return str(caught.value)


FIRST, SECOND = "jumps over Zürich<|im_end|>", "a lazy dog 東京<|im_end|>"


@pytest.mark.parametrize("template", TEMPLATES)
def test_turns_are_chosen_by_the_setting(template: str) -> None:
    tokenizer = chatml(TEMPLATES[template])
    assert trained(tokenizer, CHAT) == [FIRST, SECOND]
    assert trained(tokenizer, CHAT, "last_turn") == [SECOND]
    whole = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in CHAT.messages], tokenize=False
    )
    assert trained(tokenizer, CHAT, "all") == [whole]


@pytest.mark.parametrize("template", TEMPLATES)
def test_turns_are_chosen_by_the_record(template: str) -> None:
    tokenizer = chatml(TEMPLATES[template])
    turns = list(CHAT.messages)
    for place, kept in ((1, [SECOND]), (3, [FIRST])):
        messages = [Message(m.role, m.content, train=i != place) for i, m in enumerate(turns)]
        chat = ChatRecord(0, tuple(messages), "chats.jsonl", 1)
        assert trained(tokenizer, chat) == kept
        whole = trained(tokenizer, CHAT, "all")[0]
        assert trained(tokenizer, chat, "all") == whole.split((FIRST, SECOND)[place // 2])


def test_a_last_turn_that_is_not_to_be_trained_leaves_nothing() -> None:
    chat = record(("user", "the dog"), ("assistant", "a dog"), ("user", "a fox"))
    messages = (*CHAT.messages[:3], Message("assistant", "a", train=False))
    silent = ChatRecord(0, messages, "chats.jsonl", 1)
    tokenizer = chatml(CHATML)
    encoded = list(
        encode_records([chat, silent], tokenizer, name="it", skipped=Counter(), train_on="last_turn")
    )
    assert [int(mask.sum()) > 0 for _, _, mask in encoded] == [True, False]
    with pytest.raises(UserError, match=r"none of the \d+ tokens would be trained"):
        trained(tokenizer, silent, "last_turn")


def test_a_file_of_which_nothing_is_trained_is_refused_beside_others() -> None:
    silent = (Message("user", "a"), Message("assistant", "b", train=False))
    records = [CHAT, ChatRecord(0, silent, "other.jsonl", 1, file=1)]
    with pytest.raises(UserError, match=r"^other\.jsonl: none of the \d+ tokens would be trained"):
        list(encode_records(records, chatml(CHATML), name="./model", skipped=Counter()))


def test_a_question_cannot_be_left_out_of_all() -> None:
    messages = (Message("user", "a", train=False), Message("assistant", "b"))
    message = refusal(CHATML, ChatRecord(0, messages, "chats.jsonl", 1), "all")
    assert (
        'line 1: wrong choice of what to train: turn 1 has "train": false; with data.train_on: all' in message
    )


def test_marks_that_cannot_be_told_apart_by_turn() -> None:
    # Two marks an answer: they train both answers, but cannot say which is the last.
    template = marked().replace(
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
        "{% generation %}{{ message['content'] }}{% endgeneration %}"
        "{% generation %}{{ '<|im_end|>' }}{% endgeneration %}",
    )
    assert trained(chatml(template), CHAT) == [FIRST, SECOND]
    message = refusal(template, CHAT, "last_turn")
    assert "the marked spans cannot be told apart by turn: 4 are marked for 2 assistant turns" in message


def test_an_unknown_choice() -> None:
    with pytest.raises(UserError, match=r'data\.train_on is "turns"; use "all_turns", "last_turn" or "all"'):
        trained(chatml(CHATML), CHAT, "turns")


@pytest.mark.parametrize("answer", ["a", "s", "im", "assistant", "start|>assistant", "\n a"])
def test_short_answers_are_not_sought_in_the_header(answer: str) -> None:
    """Without a generation prompt in the template too."""
    chat = record(("user", "a"), ("assistant", answer), ("user", "assistant"), ("assistant", answer))
    assert trained(chatml(CHATML), chat) == [answer + "<|im_end|>"] * 2
    bare = CHATML[: CHATML.index("{% if add_generation_prompt %}")]
    assert [text.endswith(answer.strip() + "<|im_end|>") for text in trained(chatml(bare), chat)] == [
        True
    ] * 2


TURN = st.sampled_from(
    [
        "a",
        "assistant",
        " dog \n",
        "<|im_end|>",
        "<|im_start|>assistant\na<|im_end|>\n",
        "start|>",
        "\n\nb",
        "user",
    ]
)


@pytest.mark.parametrize("template", ["chatml", "thinking", "brackets"])
@settings(max_examples=60, deadline=None)
@given(chats=st.lists(st.lists(st.tuples(TURN, TURN), min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_frame_that_was_learnt_finds_what_rendering_finds(
    template: str, chats: list[list[tuple[str, str]]]
) -> None:
    """One template object sees several chats; another finds each answer on its own."""
    tokenizer = FRAMED[template]
    learning = ChatTemplate(tokenizer, name="it")
    for chat in chats:
        turns = [
            (role, text) for pair in chat for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        messages = record(*turns).messages
        rendering = ChatTemplate(tokenizer, name="it")
        rendering._learn_frame = lambda opening, end: None  # type: ignore[method-assign]
        assert outcome(learning, messages) == outcome(rendering, messages)


def outcome(template: ChatTemplate, messages: Sequence[Message]) -> object:
    try:
        return template.spans(messages)
    except BadRecordError as problem:
        return problem.reason


FRAMED = {
    "chatml": tokenizer_with(CHATML, *CHATML_TOKENS, eos_token="<|im_end|>"),
    "thinking": tokenizer_with(THINKING, *CHATML_TOKENS, eos_token="<|im_end|>"),
    "brackets": tokenizer_with(BRACKETS, "<s>", "</s>", eos_token="</s>"),
}


def test_a_frame_saves_rendering() -> None:
    template = ChatTemplate(FRAMED["chatml"], name="it")
    first = template.spans(CHAT.messages)
    renders: list[int] = []
    render = template._render
    template._render = lambda turns, *a, **k: renders.append(len(turns)) or render(turns, *a, **k)  # type: ignore
    assert template.spans(CHAT.messages) == first
    assert renders == [4]


def test_calls_are_trained_and_their_results_are_not() -> None:
    assert trained(chatml(TOOLS), of(CALLING)) == [CALL_TEXT, "it is dry<|im_end|>"]
    assert trained(chatml(TOOLS), of(CALLING), "last_turn") == ["it is dry<|im_end|>"]
    with_words = {"messages": [*CALLING["messages"]], "tools": CALLING["tools"]}
    with_words["messages"][1] = {**with_words["messages"][1], "content": "let me see"}
    assert trained(chatml(TOOLS), of(with_words))[0] == "let me see\n" + CALL_TEXT


def test_the_text_is_that_of_transformers() -> None:
    tokenizer = chatml(TOOLS)
    messages = [dict(turn) for turn in CALLING["messages"]]
    arguments = {"city": "Zürich", "days": 3}
    messages[1]["tool_calls"] = [{"type": "function", "function": {"name": "rain", "arguments": arguments}}]
    expected = tokenizer.apply_chat_template(messages, tools=CALLING["tools"], tokenize=True)["input_ids"]
    [(_, ids, _)] = encode_records([of(CALLING)], tokenizer, name="it", skipped=Counter())
    assert ids.tolist() == expected


def test_the_trained_tokenizers_template_has_calls_too() -> None:
    found = trained(train_tokenizer(chats(30)), of(CALLING))
    call = '[{"id": "c1", "type": "function", "function": {"name": "rain", "arguments": '
    assert found == [call + '{"city": "Zürich", "days": 3}}}]<|end|>', "it is dry<|end|>"]


def without(text: str) -> str:
    assert text in TOOLS
    return TOOLS.replace(text, "")


LEFT_OUT = {
    "tools": (without("{{ '\n' + (tool | tojson) }}"), 'the tools: the name of "rain" is not in the text'),
    "arguments": (
        without("(call.arguments | tojson) + "),
        'tool calls: message 2 calls a tool, "city" is not in',
    ),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_a_template_that_leaves_out_tools_or_calls_is_refused_by_name(what: str) -> None:
    template, expected = LEFT_OUT[what]
    message = refusal(template, of(CALLING))
    assert f"chats.jsonl, line 1: the chat template leaves out {expected}" in message
    assert message.endswith("(chat template of ./model)")


def test_a_template_without_calls_is_refused_where_the_record_lists_no_tools() -> None:
    message = refusal(CHATML, of({"messages": CALLING["messages"]}))
    assert 'the chat template leaves out tool calls: message 2 calls a tool, "city" is not in' in message


def test_a_template_that_leaves_out_a_message_or_a_name() -> None:
    silent = CHATML.replace("{{ '<|im_start|>' +", "{% if message['role'] != 'system' %}{{ '<|im_start|>' +")
    silent = silent.replace("'\n' }}{% endfor %}", "'\n' }}{% endif %}{% endfor %}")
    chat = record(("system", "be kind"), ("user", "a"), ("assistant", "b"))
    assert "the chat template leaves out a message: message 1 (system)" in refusal(silent, chat)
    named = ChatRecord(0, (Message("user", "a", name="Ann"), Message("assistant", "b")), "chats.jsonl", 1)
    assert 'the chat template leaves out names: "Ann" of message 1' in refusal(CHATML, named)
    speaks = CHATML.replace("message['role'] +", "message['role'] + (message['name'] or '') +")
    assert trained(chatml(speaks), named) == ["b<|im_end|>"]


def test_a_template_that_is_no_jinja() -> None:
    tokenizer = chatml(CHATML)
    tokenizer.chat_template = "{% for message in %}"
    with pytest.raises(UserError, match=r"\./model: no usable chat template: Expected an expression"):
        trained(tokenizer, CHAT)
