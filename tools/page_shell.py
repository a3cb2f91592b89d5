# SPDX-License-Identifier: BSD-3-Clause
"""The shell of every HTML page: head, style in light and dark, no network.

The distributions import nothing of each other, so each has a link to this file in its package;
sdists and wheels carry its content (tests/repo/test_shared_files.py).
"""

from html import escape

STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --panel: #f6f8fa; --line: #d1d9e0;
  --good: #1a7f37; --good-paper: #dafbe1; --fair: #0969da; --fair-paper: #ddf4ff;
  --bad: #c01525; --bad-paper: #ffdcd8; --known: #8a5a00; --known-paper: #fff3c4;
  --none: #7a8490; --none-paper: transparent;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --soft: #9aa4af; --paper: #0d1117; --panel: #161b22; --line: #30363d;
    --good: #56d364; --good-paper: #12301c; --fair: #79c0ff; --fair-paper: #10263f;
    --bad: #ff8b81; --bad-paper: #4a1518; --known: #e3b341; --known-paper: #3a2c07;
    --none: #6e7681;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1300px; margin: 0 auto; padding: 24px 20px 80px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 10px; padding-bottom: 4px;
  border-bottom: 1px solid var(--line); }
code, pre, .mono { font-size: 12.5px;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px 10px; margin: 4px 0 8px; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
p { margin: 6px 0; }
.soft { color: var(--soft); }
table { border-collapse: collapse; }
.plain { width: 100%; }
.plain td, .plain th { border-bottom: 1px solid var(--line); padding: 4px 8px; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
.plain td.number, .plain th.number { text-align: right; white-space: nowrap; }
input, select, button { font: inherit; font-size: 14px; color: var(--ink); background: var(--paper);
  border: 1px solid var(--line); border-radius: 6px; padding: 4px 8px; }
main > table, .wide { display: block; max-width: 100%; overflow-x: auto; }
td, th { border-bottom: 1px solid var(--line); padding: 3px 10px; text-align: left;
  vertical-align: top; }
svg, canvas { background: #fff; max-width: 100%; }
.verdict { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 16px 12px; margin: 10px 0; }
.verdict.bad { border-left: 6px solid var(--bad); }
.verdict.good { border-left: 6px solid var(--good); }
.verdict .first { font-size: 17px; font-weight: 600; }
.verdict h3 { font-size: 15px; margin: 12px 0 4px; }
.verdict table { margin: 4px 0; width: 100%; }
.verdict td, .verdict th { padding: 3px 8px 3px 0; text-align: left; overflow-wrap: normal; }
.verdict td.mono, .verdict p { overflow-wrap: anywhere; }
h1, h2 { overflow-wrap: anywhere; }
.verdict .number { text-align: right; white-space: nowrap; }
.verdict code { user-select: all; }
@media (max-width: 600px) { main { padding: 12px 8px 40px; }
  .verdict { padding: 8px 10px; } .verdict table { font-size: 12px; }
  .verdict table code, .verdict th { font-size: 11px; }
  .verdict td, .verdict th { padding-right: 4px; } .verdict th.number { white-space: normal; } }
.best td { background: var(--good-paper); }
.meter { display: flex; height: 14px; border-radius: 4px; overflow: hidden;
  border: 1px solid var(--line); }
.meter span { display: block; min-width: 1px; }
.legend { font-size: 13px; }
.legend b { display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 10px; }
"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body{ready}>
<main>
{body}
</main>
</body>
</html>
"""


def page(title: str, body: str, style: str = "", is_ready: bool = True) -> str:
    """Returns an HTML page.

    `title` is text; `body` is HTML; `style` is CSS that follows STYLE. A picture is drawn for a
    white ground and keeps it in the dark, unless `style` gives it another. A page that a script
    completes is not ready at once: the script sets `data-ready` of the body.
    """
    ready = ' data-ready="1"' if is_ready else ""
    return _PAGE.format(title=escape(title), style=STYLE + style, ready=ready, body=body)
