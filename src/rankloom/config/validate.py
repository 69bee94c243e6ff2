"""From laid-over values to validated sections, with one line for everything that is not allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import ValidationError

from rankloom.config.findings import Finding
from rankloom.config.keys import MODEL_CONFIG
from rankloom.config.overlay import Overlay, section_place
from rankloom.config.schema import SECTIONS, Section
from rankloom.config.shown import shown
from rankloom.config.values import allowed_text, allows_null

__all__ = ["settle_alternatives", "validate_section"]

ALTERNATIVES = (
    ("model.path", MODEL_CONFIG),
    ("train.max_steps", "train.epochs"),
    ("cluster.nvlink_domains", "cluster.nvlink_domain_size"),
)


def settle_alternatives(overlay: Overlay) -> Overlay:
    """Of two settings that exclude each other, a default given in code yields; two others are refused."""
    values, findings = dict(overlay.values), list(overlay.findings)
    for pair in ALTERNATIVES:
        given = [key for key in pair if values.get(key) is not None]
        if len(given) < 2:
            continue
        defaults = [key for key in given if overlay.sources[key] == "default"]
        if len(defaults) == 1:
            del values[defaults[0]]
        else:
            a, b = pair
            message = f"{a} and {b} are both set; keep one and set the other null"
            findings.append(Finding("error", "settings", message, pair, overlay.where(a, b)))
    sources = {key: source for key, source in overlay.sources.items() if _holder(key) in values}
    return replace(overlay, values=values, sources=sources, findings=tuple(findings))


def _holder(key: str) -> str:
    return MODEL_CONFIG if key.startswith(f"{MODEL_CONFIG}.") else key


def validate_section(name: str, overlay: Overlay) -> tuple[Section | None, list[Finding]]:
    """The section and a finding for each value that is not allowed, which is left out of it; None where a
    value that must be there is not."""
    section = SECTIONS[name]
    given = {
        key: overlay.values[f"{name}.{key}"]
        for key in section.model_fields
        if f"{name}.{key}" in overlay.values
    }
    settings = {
        k: v for k, v in given.items() if v is not None or allows_null(section.model_fields[k].annotation)
    }
    try:
        return section.model_validate(settings), []
    except ValidationError as error:
        findings = list(_findings(name, error, overlay=overlay))
    refused = {key for finding in findings for key in finding.keys}
    allowed = {key: value for key, value in settings.items() if f"{name}.{key}" not in refused}
    try:
        return section.model_validate(allowed), findings
    except ValidationError:
        return None, findings


def _findings(name: str, error: ValidationError, *, overlay: Overlay) -> Iterator[Finding]:
    fields = SECTIONS[name].model_fields
    seen: Mapping[str, None] = dict.fromkeys(str(detail["loc"][0]) for detail in error.errors())
    for key in seen:  # once a key: a wrong list has an error for each of its entries
        field, path = fields[key], f"{name}.{key}"
        allowed = allowed_text(field.annotation, tuple(field.metadata))
        if path in overlay.values and overlay.values[path] is not None:
            message = f"{path} must be {allowed}, not {shown(overlay.values[path])}"
            yield Finding("error", "settings", message, (path,), overlay.where(path))
        else:
            where = section_place(name, overlay.origin)
            yield Finding("error", "settings", f"{path} is required: {allowed}", (path,), where)
