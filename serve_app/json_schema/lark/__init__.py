"""Grammars in Lark's notation, enforced on the decoded text of a JSON string."""

from serve_app.json_schema.lark.notation import LarkError
from serve_app.json_schema.lark.writing import in_json
