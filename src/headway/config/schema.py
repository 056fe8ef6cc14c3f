"""The JSON schema of `headway.toml`, for editors."""

import json
from typing import Any

from headway.config.fleet import Fleet
from headway.config.model import Pool, Router
from headway.config.reading import REQUIRED, UNSET, form


def schema() -> dict[str, Any]:
    """JSON schema (draft 7, which TOML editors know). Rules across settings are not in it."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "headway.toml",
        "description": "Configuration of headway's router and of the engines behind it",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "fleet": _section(Fleet),
            "router": _section(Router),
            "pool": {"type": "array", "minItems": 1, "items": _section(Pool)},
        },
        "required": ["pool"],
    }


def schema_text() -> str:
    """The schema as it is stored in `config/headway.schema.json`."""
    return json.dumps(schema(), indent=2) + "\n"


def _section(cls: type) -> dict[str, Any]:
    settings, sections, named = form(cls)
    properties: dict[str, Any] = {}
    for setting in settings:
        described = {"description": setting.meaning, **setting.check.schema()}
        if setting.default is not REQUIRED and setting.default not in UNSET:
            described["default"] = setting.default
        properties[setting.name] = described
    properties |= {name: _section(inner) for name, inner in sections.items()}
    for name, each in named.items():
        names = {"pattern": each.name.schema()["pattern"]}
        inner = _section(each.cls)
        properties[name] = {"type": "object", "propertyNames": names, "additionalProperties": inner}
    required = [setting.name for setting in settings if setting.default is REQUIRED]
    return {
        "description": cls.__doc__ or "",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        **({"required": required} if required else {}),
    }
