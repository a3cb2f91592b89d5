# SPDX-License-Identifier: BSD-3-Clause
"""The site that `make docs` has built, as readers meet it: `make docs-test`.

Pictures of what was seen are left in build/browser.
"""

import threading
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
from browser.driver import browser
from repo.sources import ROOT

SITE = ROOT / "build" / "docs" / "html"
PICTURES = ROOT / "build" / "browser"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
PAGES = [page for page in PAGES if not page.startswith("_static/")]  # the theme's templates
SAMPLE = [page for page in PAGES if not page.startswith("files/")]
SAMPLE += [page for page in PAGES if page.startswith("files/")][::20]


class Page(HTMLParser):
    """The links of a page, and what links may lead to."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed((SITE / name).read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Notes a tag."""
        told = dict(attributes)
        self.ids |= {value for key in ("id", "name") if (value := told.get(key))}
        if link := told.get("href") or told.get("src"):
            self.links.append(link)


@cache
def page(name: str) -> Page:
    return Page(name)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line per request."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def reader():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as made:
        yield made


def test_links_within_the_site_lead_somewhere():
    broken = []
    for name in PAGES:
        for link in page(name).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = (SITE / name).parent / path if path else SITE / name
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{name}: {link}")
            elif parts.fragment and target.suffix == ".html":
                found = page(str(target.resolve().relative_to(SITE))).ids
                if unquote(parts.fragment) not in found:
                    broken.append(f"{name}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere():
    """A link may lead away; a style, a script or a picture may not."""
    away = []
    for name in PAGES:
        text = (SITE / name).read_text()
        for kind in ("<script", "<img", "<iframe", '<link rel="stylesheet"'):
            for tag in text.split(kind)[1:]:
                head = tag.partition(">")[0]
                if 'src="http' in head or 'href="http' in head or 'src="//' in head:
                    away.append(f"{name}: {kind}{head}")
    assert away == []


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_as_wide_as_the_window_and_complain_of_nothing(reader, url, width):
    reader.emulate(width)
    reader.complaints()
    wrong = []
    for name in SAMPLE:
        reader.go(url + name)
        wide = reader.run("return document.documentElement.scrollWidth")
        if wide > width:
            wrong.append(f"{name}: {wide} px")
        wrong += [f"{name}: {text}" for text in reader.complaints()]
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("record_stream", "use/races.html"),
        ("NPUSIM_RACES", "reference/env.html"),
        ("memory_allocated", "api/npusim.html"),
        ("npusim-require-device", "api/pytest.html"),
    ],
)
def test_search_finds(reader, url, words, expected):
    reader.emulate(1280)
    reader.go(f"{url}search.html?q={words}")
    reader.wait("document.querySelectorAll('#search-results li a').length > 0")
    reader.wait("/found|matching/.test(document.querySelector('.search-summary').textContent)")
    links = reader.run(
        "return [...document.querySelectorAll('#search-results li a')].map(a => a.href)"
    )
    assert any(expected in link for link in links), links
    assert reader.complaints() == []
    reader.picture(PICTURES / "search.png")


def test_the_dark_scheme_is_followed(reader, url):
    shades = {}
    for dark in (False, True):
        reader.emulate(1280, dark=dark)
        reader.run("localStorage.clear()")
        reader.go(f"{url}index.html")
        colour = reader.run("return getComputedStyle(document.body).backgroundColor")
        shades[dark] = sum(int(part) for part in colour.strip("rgba()").split(",")[:3])
        reader.picture(PICTURES / f"site_{'dark' if dark else 'light'}.png")
    assert shades[False] > 600
    assert shades[True] < 150


def test_the_first_page_has_four_doors_with_pictures(reader, url):
    for width in (390, 1280):
        reader.emulate(width, height=2400)
        reader.go(f"{url}index.html")
        seen = reader.run(
            "return [...document.querySelectorAll('.sd-card img')].map(i => i.naturalWidth)"
        )
        assert len(seen) == 4
        assert all(seen)
        reader.picture(PICTURES / f"doors_{width}.png")


def test_a_program_finds_every_page_by_llms_txt():
    text = (SITE / "llms.txt").read_text()
    targets = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert [target for target in targets if not (SITE / target).exists()] == []
    assert {"use/races.md", "reference/ops.md", "course/at_the_prompt.md"} <= {
        target.removeprefix("_sources/") for target in targets
    }
