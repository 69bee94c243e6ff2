"""JSON as records are written in it: no key of an object may have two values."""

from __future__ import annotations

import json

from rankloom.records.record import BadRecordError, cut

__all__ = ["decode", "json_value"]


def json_value(raw: bytes) -> object:
    """What is written in one line, or one part of a tar file.

    Raises BadRecordError: it is no UTF-8 or no JSON, or says two things about one key.
    """
    try:
        return decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = (
            "this looks like UTF-16"
            if wide
            else f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line"
        )
        raise BadRecordError("not valid UTF-8", f"{hint}; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        hint = "; each line must be one whole JSON object" if raw in (b"[", b"{") or raw[-1:] == b"," else ""
        raise BadRecordError("not valid JSON", f"{error.msg} at column {error.colno}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecordError("not valid JSON", f"{type(error).__name__}, {str(error)[:100]}") from None


def decode(text: str) -> object:
    """Raises ValueError for what is no JSON, RecursionError for what is nested without end, and
    BadRecordError for an object that says two things about one key."""
    return _DECODER.decode(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        for key, value in pairs:
            if value is not made[key] and value != made[key]:
                raise BadRecordError("a key twice in one object", f'"{cut(key, 30)}" has two values')
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
