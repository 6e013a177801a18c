"""What tests share stands in modules beside them: nothing imports from a test module."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def from_test_modules(text: str) -> list[str]:
    """Return the names of test modules, or things in them, that this module imports."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names]
    return [name for name in found if any(part.startswith("test_") for part in name.split("."))]


def test_every_form_of_such_an_import_is_seen() -> None:
    inside = "def later():\n    from tests.plugin.test_cdi import spec"
    for text in ("import tests.plugin.test_cdi", "from tests.plugin import test_cdi", inside):
        assert from_test_modules(text)


def test_nothing_imports_from_a_test_module() -> None:
    modules = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text() for path in modules}
    # To parse all takes seconds, and most modules have the word in names of tests alone.
    found = {
        str(path): from_test_modules(text)
        for path, text in texts.items()
        if "test_" in text.replace("def test_", "")
    }
    assert {path: names for path, names in found.items() if names} == {}
