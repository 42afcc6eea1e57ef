"""A model's text as Markdown: the elements that it becomes, and those that it can never become."""

from __future__ import annotations

from typing import Final

import pytest

from tests.console.playground.conftest import STATIC, Modules

SHOW: Final = """
    const box = document.createElement("div");
    const view = new m.MarkdownView(box);
    view.update(v);
    return box.innerHTML;
"""
MARKDOWN: Final = {
    "Hello\nworld": "<p>Hello\nworld</p>",
    "# One\n### Three #": "<h4>One</h4><h6>Three</h6>",
    "a **b *c* d** `e*f*` ~~g~~": "<p>a <strong>b <em>c</em> d</strong> <code>e*f*</code> <del>g</del></p>",
    "snake_case_name and _yes_": "<p>snake_case_name and <em>yes</em></p>",
    "2 * 3 * 4": "<p>2 * 3 * 4</p>",
    "***both***": "<p><strong><em>both</em></strong></p>",
    "\\*no\\* \\`no\\`": "<p>*no* `no`</p>",
    "``a`b``": "<p><code>a`b</code></p>",
    "`open": "<p>`open</p>",
    "**open": "<p>**open</p>",
    "- a\n- b\n  - c\n\n    more\n- d": (
        "<ul><li>a</li><li>b<ul><li>c<p>more</p></li></ul></li><li>d</li></ul>"
    ),
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "<b>x</b> <script>alert(1)</script> &amp;": (
        "<p>&lt;b&gt;x&lt;/b&gt; &lt;script&gt;alert(1)&lt;/script&gt; &amp;amp;</p>"
    ),
    "[x](javascript:alert(1)) [y](/console/keys) [z](data:text/html,x)": (
        "<p>[x](javascript:alert(1)) [y](/console/keys) [z](data:text/html,x)</p>"
    ),
}


@pytest.mark.parametrize("text", MARKDOWN)
async def test_markdown_becomes_elements(modules: Modules, text: str) -> None:
    assert await modules.run("markdown.js", SHOW, text) == MARKDOWN[text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a *b*](https://x.test/p?q=1)", [("https://x.test/p?q=1", "a b")]),
        (
            "see https://x.test/a_b_c, or http://y.test.",
            [("https://x.test/a_b_c", "https://x.test/a_b_c"), ("http://y.test/", "http://y.test")],
        ),
        (
            "<https://x.test> <mailto:a@b.test>",
            [("https://x.test/", "https://x.test"), ("mailto:a@b.test", "mailto:a@b.test")],
        ),
        ("![cat](https://x.test/cat.png)", [("https://x.test/cat.png", "cat")]),
        ("[a](https://x.test/(b))", [("https://x.test/(b)", "a")]),
    ],
)
async def test_links_are_only_followed_by_a_click(
    modules: Modules, text: str, expected: list[tuple[str, str]]
) -> None:
    script = SHOW.replace(
        "return box.innerHTML",
        """
        if (box.querySelector("img, script, iframe")) throw new Error("something was loaded");
        return [...box.querySelectorAll("a")].map((a) => [a.href, a.textContent, a.rel, a.target])
    """,
    )
    found = await modules.run("markdown.js", script, text)
    assert found == [[href, label, "noopener noreferrer nofollow", "_blank"] for href, label in expected]


async def test_code_and_tables(modules: Modules) -> None:
    code = await modules.run("markdown.js", SHOW, "```py\nif a < b:\n    **c**\n```\nafter")
    assert '<pre tabindex="0" aria-label="Code, py"><code>if a &lt; b:\n    **c**</code></pre>' in code
    assert code.endswith("<p>after</p>")
    unclosed = await modules.run("markdown.js", SHOW, "~~~\nstill coming")
    assert "<code>still coming</code>" in unclosed
    table = await modules.run("markdown.js", SHOW, "| a | b |\n|---|:-:|\n| `1` | x \\| y |\n| 2 |")
    assert '<thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>' in table
    assert "<tr><td><code>1</code></td><td>x | y</td></tr><tr><td>2</td><td></td></tr>" in table


async def test_blocks_that_did_not_change_keep_their_elements(modules: Modules) -> None:
    script = """
        const box = document.createElement("div");
        const view = new m.MarkdownView(box);
        view.update("# a\\n\\nb");
        const [first, second] = box.children;
        view.update("# a\\n\\nb and more");
        return [box.children[0] === first, box.children[1] === second, box.textContent];
    """
    assert await modules.run("markdown.js", script) == [True, False, "ab and more"]


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "![",
        "<",
        "`",
        "``x`",
        "*",
        "**a ",
        "_a",
        "~~",
        "\\",
        "> ",
        "- ",
        "\n- ",
        "|",
        "|-",
        "| a |\n|---|\n",
        "http://",
        "https://x.test/%%%",
        "[a](",
        "a_b*c`d[",
        " ",
        "\n\n",
        "#",
        "# ",
        "- a\n\n\n\n",
        "1. ",
        "(((",
        "```\n~~~\n",
    ],
)
async def test_hostile_text_is_read_once(modules: Modules, piece: str) -> None:
    """Work grows with the text, not with its square, which would be 10 billion steps and not end in time."""
    script = """
        const box = document.createElement("div");
        const text = v.repeat(Math.ceil(100000 / v.length));
        new m.MarkdownView(box).update(text);
        return text.trim() === "" || box.childNodes.length > 0;
    """
    assert await modules.run("markdown.js", script, piece)


CHARACTERS: Final = "*_~`[]()!<>#-|\\ \n\tah:/.1"


async def test_no_text_is_lost_or_breaks_the_view(modules: Modules) -> None:
    """Random texts of special characters: letters stay in their order, and nothing throws."""
    script = """
        let seed = 7;
        const next = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;
        const wrong = [];
        for (let round = 0; round < 3000; round++) {
          let text = "";
          const length = next(60);
          for (let at = 0; at < length; at++) text += v[next(v.length)];
          const box = document.createElement("div");
          try { new m.MarkdownView(box).update(text); } catch (error) { wrong.push([text, String(error)]); }
          for (const label of box.querySelectorAll(".code-bar")) label.remove();
          const letters = (of) => of.replace(/[^ah]/g, "");
          if (!box.querySelector("pre, ol, a, table") && letters(box.textContent) !== letters(text)) {
            wrong.push([text, box.innerHTML]);
          }
        }
        return wrong;
    """
    assert await modules.run("markdown.js", script, CHARACTERS) == []


async def test_no_module_has_a_way_from_text_to_markup() -> None:
    """Elements are made one by one, so a model's text cannot become anything else than text."""
    for path in STATIC.glob("*.js"):
        source = path.read_text()
        for sink in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert sink not in source, f"{path.name} uses {sink}"
        for line in source.splitlines():
            if "DOMParser" in line:
                assert path.name == "page.js", "the form of options alone is markup, which the server wrote"
