"""Records as JSON, which is UTF-8: names of files and words of a command line may be any bytes."""

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()


def encode_json(record: object) -> bytes:
    r"""One object without a line feed. Bytes that are no UTF-8 (surrogates, as os.fsdecode makes them) become `\udcff`."""
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:
        return _encoder.encode(_as_utf8(msgspec.to_builtins(record)))


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_utf8(key): _as_utf8(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_utf8(each) for each in value]
    return value
