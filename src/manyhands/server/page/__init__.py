"""The page as files: plain HTML, CSS and JavaScript modules, served and bundled as they are.

    index.html     the document; style.css: how it looks, dark and light
    main.js        begins: which run, from where
    run.js         a run, from its records: every moment of it can be asked for
    seen.js        who saw what
    source.js      where records come from: this document, or a server's stream that is resumed
    text.js        text that others wrote, made harmless
    stage.js       the workers, their steps, the trunk; score.js: all passes in one strip
    marks.js       a word that is pointed at, and what its writer could see
    player.js      the slider; talk.js: what a person says; start.js: a new run, and the list of runs

No framework, no build, and no request but to the server that the page came from: `POLICY` forbids others.
`document` makes one file of all, for a run that is mailed. An import in a module has the form
`import { a, b } from "./other.js";`, and no two modules have a top-level name in common, so that the modules
can stand one behind another in one script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

HTML, CSS, JAVASCRIPT, SVG = "text/html", "text/css", "text/javascript", "image/svg+xml"
FILES: Mapping[str, str] = MappingProxyType(  # the name of each file, and its media type
    {
        "index.html": HTML,
        "style.css": CSS,
        "icon.svg": SVG,
        **{
            f"{name}.js": JAVASCRIPT
            for name in (
                "text",
                "run",
                "seen",
                "source",
                "stage",
                "score",
                "marks",
                "player",
                "talk",
                "start",
                "main",
            )
        },
    }
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Headers with which every file of the page is sent.
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_STYLE = '<link rel="stylesheet" href="page/style.css">'
_ICON = '<link rel="icon" href="page/icon.svg" type="image/svg+xml">'
_SCRIPT = '<script type="module" src="page/main.js"></script>'


def read(name: str) -> str:
    """One of `FILES`."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def document(records: Sequence[Mapping[str, Any]]) -> str:
    """The page with a run in it (`server/records.py`), in one file: no request leaves it.

    Scripts and styles stand in the document, and its policy allows these very texts by their hashes. The
    records are data that no browser runs.
    """
    style, script = read("style.css"), _one_script()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(read("icon.svg").encode()).decode()
    parts = {
        _STYLE: f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>",
        _ICON: f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
        _SCRIPT: f'<script type="application/json" id="records">{_harmless(records)}</script>\n'
        f'<script type="module">{script}</script>',
    }
    page = read("index.html")
    for place, part in parts.items():
        assert page.count(place) == 1, f"index.html has {place} once"
        page = page.replace(place, part)
    return page


def _harmless(records: Sequence[Mapping[str, Any]]) -> str:
    """JSON that no HTML parser takes for markup. Pure ASCII, so half surrogates pass too."""
    text = json.dumps(list(records), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _one_script() -> str:
    """All modules in one, each behind those that it imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = read(f"{name}.js")
        done[name] = ""  # a circle of imports ends here
        for needed in _IMPORT.findall(text):
            add(needed)
        del done[name]
        done[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("main")
    script = "\n".join(done.values())
    assert "</script" not in script.lower(), "it can stand in a page"
    assert "\nimport" not in script, "it needs no other file"
    return script
