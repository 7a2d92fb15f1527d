"""The manifests as text: YAML with the notes as comments, or a List as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import yaml

from orchestrator.spec.kubernetes.manifests import Manifest


def as_yaml(found: Sequence[Manifest], notes: Sequence[str]) -> str:
    """Return one document for each object, below the notes."""
    head = "".join(f"# {note}\n" for note in notes)
    return head + "".join("---\n" + _text(manifest) for manifest in found)


def as_list(found: Sequence[Manifest]) -> str:
    """Return one JSON object, which kubectl reads as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(found)}, indent=2)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as its lines, for people."""


def _as_lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_lines)


def _text(manifest: Manifest) -> str:
    text: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text
