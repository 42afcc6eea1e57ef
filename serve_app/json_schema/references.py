"""Resolves the references of one schema. Nothing outside the schema is ever read.

A reference may lead anywhere in the document: into `components`, `x-` members or keywords that are
not enforced. A subschema with an `$id` is a resource of its own, and references find it by that `$id`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from serve_app.json_schema.vocabulary import REFERENCES, Path, Schema, UnusableSchema, subschemas

_MAX_CHAIN: Final = 16  # bare references in a row; longer chains count as rings
_OLD_DRAFTS: Final = ("draft-03", "draft-04")  # which spell `$id` as `id`


@dataclass(slots=True, eq=False)
class Resource:
    """A schema with an address of its own: the document, or a subschema with an `$id`."""

    root: Schema
    path: Path
    uri: str
    anchors: dict[str, tuple[Any, Path]] = field(default_factory=dict)


class References:
    """The places in one schema that its references name."""

    def __init__(self, root: Schema) -> None:
        self.dynamic_anchors: dict[str, int] = {}  # name -> how often the name is given
        self._id = "id" if any(draft in str(root.get("$schema")) for draft in _OLD_DRAFTS) else "$id"
        self._document = Resource(root, (), _address("", root.get(self._id)))
        self._resources = {self._document.uri: self._document}
        self._owners: dict[int, Resource] = {}  # id of a schema -> the resource that it belongs to
        self._known: list[tuple[Schema, Path]] = []  # the schemas of `_owners`
        self._walk(root, (), self._document)

    @property
    def one_resource(self) -> bool:
        """Whether no subschema has an `$id`, so that dynamic references are plain ones."""
        return len(self._resources) == 1

    def target(self, schema: Schema, keyword: str) -> tuple[Any, Path]:
        """The schema that a reference in `schema` names, and its place. Raises UnusableSchema."""
        resource, fragment = self._resource(schema, keyword)
        found, path = _find(resource, fragment)
        if not isinstance(found, dict | bool):
            raise UnusableSchema(f"{keyword} {schema[keyword][:100]!r} leads to no schema")
        if isinstance(found, dict) and id(found) not in self._owners:
            self._walk(found, path, resource)
        return found, path

    def targets(self, schema: Schema) -> list[Any]:
        """The schemas that the references of `schema` itself lead to."""
        found: list[Any] = []
        for keyword in REFERENCES:
            if keyword in schema:
                try:
                    found.append(self.target(schema, keyword)[0])
                except UnusableSchema:
                    continue
        return found

    def resolved(self, schema: Any) -> Any:
        """`schema`, or its target if it is only a reference."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            targets = self.targets(schema)
            if not targets:
                break
            schema = targets[0]
        return schema

    def check(self) -> None:
        """Raise an UnusableSchema that names the place if a reference leads to another document."""
        for schema, path in self._known:
            for keyword in REFERENCES:
                if keyword in schema:
                    try:
                        self._resource(schema, keyword)
                    except UnusableSchema as error:
                        raise error.at((*path, keyword)) from None

    def _resource(self, schema: Schema, keyword: str) -> tuple[Resource, str]:
        """The resource that a reference names, and the place in it. Raises UnusableSchema."""
        reference, owner = schema[keyword], self._owners.get(id(schema), self._document)
        try:
            if reference.startswith("#"):
                return owner, reference[1:]
            uri, fragment = urldefrag(urljoin(owner.uri, reference))
            return owner if uri == owner.uri else self._resources[uri], fragment
        except (AttributeError, ValueError, KeyError):  # not a string, or not an address in this document
            raise UnusableSchema(
                f'{keyword} must point into the schema itself ("#/$defs/..."); nothing is fetched'
            ) from None

    def _walk(self, schema: Schema, path: Path, owner: Resource) -> None:
        """Collect the resources and anchors of `schema` and of everything inside it."""
        pending: list[tuple[Any, Path, Resource]] = [(schema, path, owner)]
        while pending:
            schema, path, owner = pending.pop()
            if not isinstance(schema, dict) or id(schema) in self._owners:
                continue
            owner = self._named(schema, path, owner)
            self._owners[id(schema)] = owner
            self._known.append((schema, path))
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := schema.get(key), str):
                    owner.anchors.setdefault(name, (schema, path))
            if isinstance(name := schema.get("$dynamicAnchor"), str):
                self.dynamic_anchors[name] = self.dynamic_anchors.get(name, 0) + 1
            pending += [
                (each, (*path, keyword) if key is None else (*path, keyword, str(key)), owner)
                for keyword, key, each in subschemas(schema)
            ]

    def _named(self, schema: Schema, path: Path, owner: Resource) -> Resource:
        """The resource that `schema` belongs to; a schema with an address is a resource of its own."""
        name = schema.get(self._id)
        if not isinstance(name, str):
            return owner
        if name.startswith("#"):  # until draft 7 an anchor is spelled so
            owner.anchors.setdefault(name[1:], (schema, path))
            return owner
        if schema is self._document.root:
            return owner
        uri = _address(owner.uri, name)
        return self._resources.setdefault(uri, Resource(schema, path, uri))


def _address(base: str, name: Any) -> str:
    """The absolute form of a schema's own name, or `base` if the name is not valid."""
    try:
        return urldefrag(urljoin(base, name))[0] if isinstance(name, str) else base
    except ValueError:
        return base


def _find(resource: Resource, fragment: str) -> tuple[Any, Path]:
    """The schema at a fragment, and its place. Some generators leave names unescaped, so try both ways."""
    if fragment and not fragment.startswith("/"):
        return resource.anchors.get(unquote(fragment), (None, ()))
    found = _at(resource, fragment)
    return found if found[0] is not None else _at(resource, unquote(fragment))


def _at(resource: Resource, pointer: str) -> tuple[Any, Path]:
    found: Any = resource.root
    keys = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for key in keys:
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and len(key) < 9 and int(key) < len(found):
            found = found[int(key)]
        else:
            return None, ()
    return found, (*resource.path, *keys)
