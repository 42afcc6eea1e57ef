"""Random JSON Schemas of the kind that clients send, by seed."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("name", "city", "count", "tags", "price", "is open", "Größe", 'a "quoted" key', "id", "next")


class SchemaMaker:
    """Nested objects, arrays, enums, unions and references, each small enough to be answered."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._definitions: dict[str, Schema] = {}

    def make(self) -> Schema:
        """A schema whose root is mostly an object, with its definitions."""
        rng = self._rng
        for i in range(rng.choice([0, 0, 1, 2])):
            self._definitions[f"d{i}"] = self._any(2)
        if rng.random() < 0.2:
            link: Schema = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
            self._definitions["node"] = self._of({"value": self._leaf(), "next": link}, 2)
        root = self._object(0) if rng.random() < 0.8 else self._any(0)
        return root | {"$defs": self._definitions} if self._definitions else root

    def _any(self, depth: int) -> Schema:
        rng = self._rng
        draw = rng.random()
        if depth >= 3 or draw < 0.5:
            return self._leaf()
        if draw < 0.65:
            return self._array(depth)
        if draw < 0.85:
            return self._object(depth)
        if draw < 0.93:
            return {"anyOf": [self._any(depth + 1) for _ in range(rng.randint(2, 3))]}
        finished = list(self._definitions)
        return {"$ref": f"#/$defs/{rng.choice(finished)}"} if finished else self._leaf()

    def _leaf(self) -> Schema:
        rng = self._rng
        low = rng.randint(-1000, 1000)
        return rng.choice(
            [
                {"type": "string", "maxLength": rng.randint(1, 12)},
                {"type": "string", "minLength": 2, "maxLength": 8},
                {
                    "type": "string",
                    "pattern": rng.choice(["^[a-z]{2,6}$", "^[A-Z][a-z]+-[0-9]{3}$", r"^\d{4}$"]),
                },
                {"type": "string", "format": rng.choice(["date", "ipv4", "uuid"])},
                {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)},
                {"type": "integer", "exclusiveMinimum": low, "maximum": low + 7},
                {"type": "number", "minimum": 0, "maximum": rng.randint(1, 99)},
                {"type": "boolean"},
                {"type": "null"},
                {"type": ["boolean", "null"]},
                {
                    "enum": rng.sample(
                        ["red", "green", 1, 2.5, None, True, 'q"uote', "naïve"], rng.randint(1, 4)
                    )
                },
                {"const": rng.choice(["fixed", 7, None, {"a": [1]}])},
            ]
        )

    def _array(self, depth: int) -> Schema:
        low = self._rng.randint(0, 2)
        return {
            "type": "array",
            "items": self._any(depth + 1),
            "minItems": low,
            "maxItems": low + self._rng.randint(0, 2),
        }

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(_WORDS, self._rng.randint(1, 4 - min(depth, 2)))
        return self._of({name: self._any(depth + 1) for name in names}, depth)

    def _of(self, properties: dict[str, Schema], depth: int) -> Schema:
        required = [name for name in properties if self._rng.random() < 0.7]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
