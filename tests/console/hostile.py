"""Strings that would run a script somewhere, were they taken for markup, an attribute, an address or code.

Each calls `hit()`, which a test watches for. They are aimed at HTML, attributes, URLs, Markdown, JavaScript,
JSON in scripts, templates, CSS, htmx's attributes and its events.
"""

from __future__ import annotations

from typing import Final

HTML: Final = (
    "<script>hit()</script>",
    "</script><script>hit()</script>",
    "<ScRiPt>hit()</sCrIpT>",
    "<<script>script>hit()<</script>/script>",
    "<img src=x onerror=hit()>",
    "<img/src='x'/onerror='hit()'>",
    "<svg onload=hit()>",
    "<svg><script>hit()</script></svg>",
    "<svg><animate onbegin=hit() attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.hit()</script>'></iframe>",
    "<iframe src=javascript:parent.hit()></iframe>",
    "<object data='javascript:hit()'></object>",
    "<embed src='javascript:hit()'>",
    "<body onload=hit()>",
    "<details open ontoggle=hit()>x</details>",
    "<input autofocus onfocus=hit()>",
    "<video><source onerror=hit()></video>",
    "<marquee onstart=hit()>x</marquee>",
    "<form><button formaction=javascript:hit()>x</button></form>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=javascript:hit()'>",
    "<link rel=stylesheet href='data:text/css,*{}'>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<math><mtext></p><script>hit()</script></math>",
    "<noscript><p title='</noscript><img src=x onerror=hit()>'>",
    "<template><script>hit()</script></template>",
    "<!--><img src=x onerror=hit()>-->",
    "<![CDATA[><img src=x onerror=hit()>]]>",
)
ATTRIBUTES: Final = (
    '"><img src=x onerror=hit()>',
    "'><img src=x onerror=hit()>",
    '" autofocus onfocus="hit()',
    "' onmouseover='hit()' x='",
    "` onmouseover=hit() `",
    '"}\' hx-on::load="hit()" x=\'',
    '<div hx-get="/console/none" hx-trigger="load" hx-on::after-request="hit()"></div>',
    "<div hx-trigger='load[hit()]' hx-get='/console'></div>",
)
ADDRESSES: Final = (
    "javascript:hit()",
    "JaVaScRiPt:hit()//",
    "\x01javascript:hit()",
    "data:text/html,<script>hit()</script>",
)
MARKDOWN: Final = (
    "[click](javascript:hit())",
    "[click](<javascript:hit()> 'x')",
    '![x](x" onerror="hit())',
    "[a]: javascript:hit()\n\n[a]",
    "```html\n<script>hit()</script>\n```",
    '<https://x/?"onmouseover="hit()>',
)
CODE: Final = (
    "'-hit()-'",
    "${hit()}",
    "{{ hit() }}{% include '/etc/passwd' %}",
    "</title><script>hit()</script>",
    "\u2028hit()//</textarea><img src=x onerror=hit()>",
)
STRINGS: Final = (*HTML, *ATTRIBUTES, *ADDRESSES, *MARKDOWN, *CODE)

# Runs before every script of a page: what would be a success of a string, and what the policy had to stop.
WATCH: Final = """
window.hits = [];
window.hit = () => window.hits.push("hit");
for (const name of ["alert", "confirm", "prompt"]) window[name] = () => window.hits.push(name);
document.addEventListener("securitypolicyviolation", (event) =>
  window.hits.push(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""

# What of a page's tree no page of ours has. A string that became an element is one of these.
FOREIGN: Final = """() => {
  const names = ["iframe", "object", "embed", "base", "marquee", "math", "style", "video"];
  const places = ["href", "src", "action", "formaction"];
  const found = [];
  for (const element of document.querySelectorAll("*")) {
    const name = element.tagName.toLowerCase();
    if (names.includes(name)) found.push(name);
    if (name === "script" && !element.getAttribute("src")?.startsWith("/console/static/")) found.push(name);
    for (const { name: attribute, value } of element.attributes) {
      const isCode = /^(on|hx-on)|^srcdoc$/.test(attribute);
      const isAway = places.includes(attribute) && !/^(\\/|#|\\?|https?:|data:image|$)/.test(value);
      if (isCode || isAway) found.push(`${name} ${attribute}=${value}`);
    }
  }
  return found;
}"""
