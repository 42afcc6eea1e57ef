"""Where the references of one schema lead. Nothing outside of it is ever looked at."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from serve_app.json_schema.vocabulary import REFERENCES, Schema, subschemas


class References:
    """The places of one schema that its references name."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._anchors: dict[str, Schema] = {}
        self.one_resource = True  # no `$id` inside, so that dynamic references are plain ones
        self.dynamic_anchors: dict[str, int] = {}  # name -> how often it is given
        pending: list[Any] = [root]
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict):
                continue
            self.one_resource &= schema is root or "$id" not in schema
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(key), str):
                    self._anchors.setdefault(schema[key], schema)
            if isinstance(name := schema.get("$dynamicAnchor"), str):
                self.dynamic_anchors[name] = self.dynamic_anchors.get(name, 0) + 1
            pending += [each for _, _, each in subschemas(schema)]

    def target(self, reference: Any) -> Any:
        """The schema that `#...` names; None when there is none."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer)
        found: Any = self._root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and len(key) < 9 and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found

    def targets(self, schema: Schema) -> list[Any]:
        """What the references of `schema` itself lead to."""
        return [self.target(schema[key]) for key in REFERENCES if key in schema]

    def resolved(self, schema: Any) -> Any:
        """`schema`, or what it is a bare reference to."""
        for _ in range(16):  # longer chains are rings, or nobody's
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            target = self.target(schema["$ref"])
            if target is None:
                break
            schema = target
        return schema
