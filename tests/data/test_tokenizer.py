"""The trained tokenizer and the model folder's own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rankloom.data.encoding import encode_records
from rankloom.data.tokenizer import folder_identity, load_tokenizer, train_tokenizer
from rankloom.errors import UserError
from rankloom.records.special_tokens import MIN_VOCAB_SIZE
from tests.data.chats import chats, record


def test_training_is_deterministic() -> None:
    # Many pairs occur equally often here, so that an order taken from a hash map would show.
    models = {train_tokenizer(chats(60), max_vocab_size=420).backend_tokenizer.to_str() for _ in range(4)}
    assert len(models) == 1


def test_size_and_special_tokens() -> None:
    tokenizer = train_tokenizer(chats(60), max_vocab_size=300)
    assert len(tokenizer) == 300
    assert tokenizer.convert_tokens_to_ids(["<|pad|>", "<|end|>"]) == [0, 1]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert len(train_tokenizer(chats(2), max_vocab_size=4096)) < 400


def test_any_text_comes_back() -> None:
    tokenizer = train_tokenizer(chats(5), max_vocab_size=MIN_VOCAB_SIZE)
    text = "  tabs\tand\r\n lines \x00 é 東京 🙂 "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_saved_with_its_template(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(chats(30), max_vocab_size=300)
    tokenizer.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    turns = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the dog"}]
    asked = again.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert asked == "<|system|>be kind<|end|><|user|>the dog<|end|><|assistant|>"
    assert again.chat_template == tokenizer.chat_template
    assert (len(again), again.pad_token_id, again.eos_token_id) == (300, 0, 1)
    assert again(asked)["input_ids"] == tokenizer(asked)["input_ids"]


def test_the_mask_is_the_one_of_transformers() -> None:
    tokenizer = train_tokenizer(chats(30), max_vocab_size=300)
    chat = record(
        ("user", "東京 dog"), ("assistant", "Zürich 🙂 dog"), ("user", "fox"), ("assistant", " a  fox ")
    )
    turns = [{"role": message.role, "content": message.content} for message in chat.messages]
    expected = tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    [(_, ids, trained)] = encode_records([chat], tokenizer, name="it", skipped=Counter())
    assert ids.tolist() == expected["input_ids"]
    assert trained.tolist() == [bool(mask) for mask in expected["assistant_masks"]]


def test_too_small_a_vocabulary() -> None:
    with pytest.raises(UserError) as caught:
        train_tokenizer(chats(5), max_vocab_size=100)
    assert str(caught.value) == (
        "model.config.vocab_size 100 is too small to train a tokenizer: 256 bytes + 6 special tokens = 262; "
        "use at least 262"
    )


def save(folder: Path, *, template: bool = True) -> Path:
    tokenizer = train_tokenizer(chats(30), max_vocab_size=300)
    if not template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(str(folder))
    return folder


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such folder; model\.path is the folder of"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds no tokenizer \(neither tokenizer\.json nor"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"its tokenizer has no chat template; put one in .*jinja"):
        load_tokenizer(save(tmp_path, template=False))


@pytest.mark.parametrize(
    "content", ["{}", "{", '{"model": 3}', '{"added_tokens": [], "model": {"type": "BPE"}}']
)
def test_a_broken_tokenizer(content: str, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="its tokenizer cannot be loaded: "):
        load_tokenizer(tmp_path)


def test_identity_follows_tokenizer_and_template(tmp_path: Path) -> None:
    folder = save(tmp_path)
    first = folder_identity(folder)
    (folder / "model.safetensors").write_bytes(b"weights")
    assert folder_identity(folder) == first
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    second = folder_identity(folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": "<|pad|>"}))
    assert len({first, second, folder_identity(folder)}) == 3


@pytest.mark.parametrize("cuts", [False, True], ids=["plain", "truncates_and_pads"])
def test_a_tokenizer_is_saved_as_it_was_read(tmp_path: Path, cuts: bool) -> None:
    """Chats are neither cut nor padded by it, and what is saved with the model still cuts and pads."""
    own = train_tokenizer(chats(30), max_vocab_size=300)
    if cuts:
        own.backend_tokenizer.enable_truncation(max_length=9)
        own.backend_tokenizer.enable_padding(length=12, pad_id=0, pad_token="<|pad|>")
    own.save_pretrained(str(tmp_path / "own"))
    load_tokenizer(tmp_path / "own").save_pretrained(str(tmp_path / "loaded"))

    tokenizer = load_tokenizer(tmp_path / "own")
    chat = record(("user", "the quick fox"), ("assistant", "says <|end|> and " * 9))
    for trained_on in ([chat], chats(30)):  # the first needs the copy that takes special tokens for text
        for (_, ids, _), like in zip(
            encode_records(trained_on, tokenizer, name="it", skipped=Counter()),
            encode_records(
                trained_on, train_tokenizer(chats(30), max_vocab_size=300), name="it", skipped=Counter()
            ),
            strict=True,
        ):
            assert ids.tolist() == like[1].tolist()
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    assert contents(tmp_path / "saved") == contents(tmp_path / "loaded")
    same = {"tokenizer.json", "chat_template.jinja"} if cuts else set(contents(tmp_path / "own"))
    for name in same:  # transformers writes what cuts and pads into the other file too
        assert contents(tmp_path / "saved")[name] == contents(tmp_path / "own")[name]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
