"""Bytes in words."""

from __future__ import annotations

__all__ = ["bytes_text"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(num_bytes: int) -> str:
    """Powers of ten, three digits.

    >>> bytes_text(512), bytes_text(3_152_640), bytes_text(999_999_999)
    ('512 B', '3.15 MB', '1.00 GB')
    """
    value, unit = float(num_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{num_bytes} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"
