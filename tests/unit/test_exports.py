"""What `from serve_app import ...` offers, and what a mere `import serve_app` does not load."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import serve_app

README = Path(serve_app.__file__).parent.parent / "README.md"
HEAVY = ("ray", "torch", "transformers", "starlette", "pydantic", "msgspec", "sqlalchemy")


def test_a_mere_import_is_light():
    code = f"import sys, serve_app; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_settings_load_neither_ray_nor_torch():
    code = "import sys; from serve_app import ModelConfig, Endpoint, SamplingParams; "
    code += "print([name for name in ('ray', 'torch', 'transformers') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("name", serve_app.__all__)
def test_every_name_is_the_one_of_its_module(name):
    found = getattr(serve_app, name)
    assert found is getattr(sys.modules[found.__module__], found.__name__)
    assert found.__module__.startswith("serve_app.")
    assert name in dir(serve_app)


def test_names_are_listed_once_and_sorted():
    assert sorted(set(serve_app.__all__), key=lambda n: (n[0].islower(), n)) == serve_app.__all__
    assert set(serve_app._MODULES) == set(serve_app.__all__)


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        serve_app.Cleint  # noqa: B018
    with pytest.raises(ImportError):
        from serve_app import Cleint  # noqa: F401


def test_what_the_readme_imports_is_there():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    imports = [node for block in blocks for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports if node.module == "serve_app" for alias in node.names]
    assert "Client" in names
    assert set(names) <= set(serve_app.__all__)
