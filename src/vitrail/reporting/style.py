"""How pages look: one sheet of rules for light, dark, phone and paper, and the mark of panes."""

from __future__ import annotations

from typing import Final

# Glass colours, each with at least 4.5 : 1 against the paper behind it, in both lights.
_LIGHT: Final = """--paper:#fbfaf7;--card:#fff;--ink:#23202c;--soft:#5d5969;--line:#dfdbd3;--faint:#eeebe4;
--lead:#2b2833;--blue:#1f4fa3;--ruby:#a8243c;--amber:#8f5a00;--green:#1b6e4c;--violet:#6a3d98;--teal:#0f6c78"""
_DARK: Final = """--paper:#15141b;--card:#1d1c25;--ink:#ece9f2;--soft:#aca7b8;--line:#373441;--faint:#272530;
--lead:#08070b;--blue:#86aef7;--ruby:#f28496;--amber:#e6b04e;--green:#69cb9f;--violet:#bd9cea;--teal:#6cc5cf"""

LIGHT, DARK = (
    {name.removeprefix("--"): value for name, value in (each.split(":") for each in rules.replace("\n", "").split(";"))}
    for rules in (_LIGHT, _DARK)
)

CHART_STYLE: Final = """svg.plot .tick{fill:var(--soft)}
svg.plot .grid{stroke:var(--line);stroke-width:1;fill:none}
svg.plot .axis{stroke:var(--soft);stroke-width:1;fill:none}
svg.plot .name{paint-order:stroke;stroke:var(--paper);stroke-width:3;stroke-linejoin:round}"""

STYLE: Final = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;text-size-adjust:100%}}
body{{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Liberation Sans",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:break-word}}
.window{{display:block;width:100%;height:14px;background:var(--lead)}}
.inner{{max-width:1120px;margin:0 auto;padding:0 24px}}
header .inner{{padding-top:26px;padding-bottom:8px}}
.name{{display:flex;align-items:center;gap:10px;color:var(--soft);font-size:15px;letter-spacing:.04em}}
.name svg{{width:30px;height:30px;flex:none}}
h1,h2,h3{{font-family:"Iowan Old Style","Palatino Linotype",Palatino,Georgia,"Liberation Serif",serif;line-height:1.2;
text-wrap:balance;overflow-wrap:anywhere}}
h1{{font-size:clamp(26px,5vw,40px);margin:16px 0 4px;font-weight:600}}
.subtitle{{color:var(--soft);margin:0 0 14px;font-size:17px;overflow-wrap:anywhere}}
nav ul{{display:flex;flex-wrap:wrap;gap:6px 8px;list-style:none;margin:0;padding:0 0 18px}}
nav a{{display:block;padding:3px 12px;border:1px solid var(--line);border-radius:99px;color:var(--soft);
text-decoration:none;font-size:14px;background:var(--card)}}
nav a:hover,nav a:focus-visible{{color:var(--blue);border-color:var(--blue)}}
nav.pages ul{{padding-bottom:10px}}
nav.pages a{{color:var(--blue);border-radius:6px}}
nav.pages [aria-current]{{display:block;padding:3px 12px;border:1px solid var(--blue);border-radius:6px;font-size:14px;
font-weight:600;background:var(--card);white-space:nowrap}}
main section{{padding:26px 0 30px;border-top:1px solid var(--line);scroll-margin-top:8px}}
h2{{font-size:25px;margin:0 0 4px;font-weight:600}}
h3{{font-size:18px;margin:26px 0 8px;font-weight:600}}
.note{{color:var(--soft);margin:0 0 16px;max-width:72ch;text-wrap:pretty}}
p{{max-width:72ch;margin:10px 0;text-wrap:pretty}}
.w{{white-space:nowrap}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:16px 0}}
.tile{{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--blue);border-radius:6px;
padding:14px 16px}}
.tile:nth-child(4n+2){{border-left-color:var(--violet)}}
.tile:nth-child(4n+3){{border-left-color:var(--green)}}
.tile:nth-child(4n+4){{border-left-color:var(--amber)}}
.tile>b{{display:block;font:600 32px/1.15 "Iowan Old Style","Palatino Linotype",Palatino,Georgia,"Liberation Serif",
serif}}
.tile>span{{display:block;font-weight:600;margin:2px 0 4px;overflow-wrap:anywhere}}
.tile>small{{display:block;color:var(--soft);font-size:14px;line-height:1.45}}
.facts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:10px 26px;margin:14px 0}}
.facts div{{border-top:1px solid var(--line);padding-top:6px;min-width:0}}
.facts dt{{color:var(--soft);font-size:14px}}
.facts dd{{margin:0;overflow-wrap:anywhere}}
.tile.good{{border-left-color:var(--green)}}
.tile.bad{{border-left-color:var(--ruby)}}
.tile.warn{{border-left-color:var(--amber)}}
.callout{{border:1px solid var(--line);border-left:5px solid var(--blue);background:var(--card);border-radius:6px;
padding:10px 16px;margin:12px 0;max-width:none;overflow-wrap:anywhere}}
.callout.good{{border-left-color:var(--green)}}
.callout.bad{{border-left-color:var(--ruby)}}
.callout.warn{{border-left-color:var(--amber)}}
.scroll{{overflow-x:auto;margin:14px 0;max-width:100%;background:linear-gradient(to right,var(--paper) 40%,transparent)
0 0/40px 100% no-repeat local,linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/40px 100% no-repeat local,
linear-gradient(to left,var(--line),transparent) 100% 0/14px 100% no-repeat scroll}}
.scroll:focus-visible{{outline:2px solid var(--blue);outline-offset:2px}}
table{{border-collapse:collapse;min-width:min(100%,520px);font-size:15px}}
th,td{{padding:6px 22px 6px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}}
th{{font-weight:600}}
thead th{{color:var(--soft);font-size:14px;font-weight:600;vertical-align:bottom;border-bottom:2px solid var(--line)}}
tbody th{{font-weight:500;min-width:7.6em;max-width:26em}}
tbody th.long{{overflow-wrap:anywhere;min-width:11em}}
button{{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}}
button:focus-visible,summary:focus-visible,a:focus-visible{{outline:2px solid var(--blue);outline-offset:2px;
border-radius:3px}}
.sort{{font-weight:600;text-align:inherit;position:relative}}
.sort::after{{content:"\\2195";position:absolute;right:-1em;bottom:0;width:.9em;text-align:left;opacity:.5}}
.sort:hover{{color:var(--blue)}}
th:not([aria-sort=none]) .sort::after{{content:"\\2191";color:var(--blue);opacity:1}}
th[aria-sort=descending] .sort::after{{content:"\\2193"}}
.open{{display:block;width:100%;cursor:zoom-in}}
.plate .open{{width:auto;max-width:100%}}
.enlarge{{margin-top:6px;padding:3px 12px;border:1px solid var(--line);border-radius:99px;font-size:14px;
color:var(--soft);background:var(--card)}}
.enlarge:hover{{color:var(--blue);border-color:var(--blue)}}
dialog.large{{border:1px solid var(--line);border-radius:8px;background:var(--paper);color:var(--ink);padding:14px;
width:min(96vw,1500px);max-width:none;max-height:96vh;overflow:hidden}}
dialog.large[open]{{display:flex;flex-direction:column;gap:10px}}
dialog.large::backdrop{{background:rgb(8 7 11/.8)}}
dialog.large .stage{{overflow:auto;flex:1 1 auto;min-height:0;text-align:center}}
dialog.large img{{max-width:100%;height:auto;object-fit:contain;margin:0 auto;display:block;border-radius:4px}}
dialog.large img.tiny{{image-rendering:pixelated}}
dialog.large svg.plot{{max-width:none;height:auto;margin:0 auto}}
dialog.large p{{flex:none;margin:0 auto;max-width:90ch;color:var(--soft);font-size:15px;text-align:center;
overflow-wrap:anywhere;max-height:24vh;overflow-y:auto}}
dialog.large p b{{color:var(--ink)}}
dialog.large .keys{{display:flex;gap:10px;justify-content:center;flex:none}}
dialog.large .keys button{{padding:5px 16px;border:1px solid var(--line);border-radius:99px;background:var(--card)}}
dialog.large .keys button:hover{{color:var(--blue);border-color:var(--blue)}}
dialog.large .keys [hidden]{{display:none}}
.n{{text-align:right;white-space:nowrap}}
th.n{{white-space:normal}}
th:last-child,td:last-child{{padding-right:15px}}
tbody th,thead th:first-child{{position:sticky;left:0;background:var(--paper)}}
tbody tr:hover,tbody tr:hover th{{background:var(--faint)}}
.gallery{{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin:14px 0}}
.gallery.small{{grid-template-columns:repeat(auto-fill,minmax(clamp(98px,22%,130px),1fr));gap:8px}}
.gallery.small figcaption{{padding:6px;font-size:12.5px}}
.gallery.large{{grid-template-columns:repeat(auto-fill,minmax(240px,1fr))}}
.gallery figure{{margin:0;background:var(--card);border:1px solid var(--line);border-radius:6px;overflow:hidden;
border-bottom-width:4px;min-width:0}}
.gallery .good{{border-bottom-color:var(--green)}}
.gallery .bad{{border-bottom-color:var(--ruby)}}
.gallery .warn{{border-bottom-color:var(--amber)}}
.gallery img{{display:block;width:100%;aspect-ratio:1;object-fit:contain;background:var(--faint)}}
.gallery img.tiny{{image-rendering:pixelated}}
.gallery figcaption{{padding:7px 10px 8px;font-size:13.5px;line-height:1.4;overflow-wrap:anywhere;color:var(--soft)}}
.gallery figcaption b{{color:var(--ink);font-weight:600}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:18px 28px;margin:14px 0;
align-items:start}}
.charts>*{{min-width:0}}
figure.chart{{margin:0;max-width:440px}}
figure.chart.wide{{max-width:none}}
figure.chart>figcaption{{font-weight:600;margin-bottom:4px}}
figure.chart>.scroll{{margin:0}}
figure.chart>.scroll.more{{mask-image:linear-gradient(to left,transparent,#000 40px)}}
svg.plot{{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",
sans-serif;fill:var(--ink)}}
{CHART_STYLE}
.heat{{list-style:none;margin:10px 0;padding:0;font-size:14px;color:var(--soft)}}
.heat li{{margin:4px 0;max-width:90ch}}
.heat svg{{height:14px;vertical-align:-2px;margin:0 6px}}
.heat .scale{{width:200px;max-width:45vw;border-radius:2px}}
.heat .cross{{width:14px;margin-left:0}}
.legend{{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:2px 0 0;padding:0;font-size:14px;
color:var(--soft)}}
.legend svg{{width:22px;height:10px;margin-right:6px;vertical-align:middle}}
figure.plate{{margin:0 0 34px}}
figure.plate img{{display:block;max-width:100%;height:auto;border-radius:4px}}
figure.plate>figcaption{{color:var(--soft);max-width:72ch;margin-top:8px}}
.tabs{{margin:14px 0}}
.tabs>input{{position:absolute;opacity:0;width:1px;height:1px}}
.tabs>label{{display:inline-block;padding:4px 14px;border:1px solid var(--line);border-radius:99px;margin:0 6px 10px 0;
font-size:14px;cursor:pointer;color:var(--soft);background:var(--card)}}
.tabs>input:checked+label{{color:var(--paper);background:var(--blue);border-color:var(--blue)}}
.tabs>input:focus-visible+label{{outline:2px solid var(--blue);outline-offset:2px}}
.tabs>.tab{{display:none}}
.tabs>input:nth-of-type(1):checked~.tab:nth-of-type(1),.tabs>input:nth-of-type(2):checked~.tab:nth-of-type(2),
.tabs>input:nth-of-type(3):checked~.tab:nth-of-type(3),
.tabs>input:nth-of-type(4):checked~.tab:nth-of-type(4){{display:block}}
details{{margin:12px 0}}
summary{{cursor:pointer;color:var(--blue);padding:2px 0}}
pre{{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:12px 14px;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.5 ui-monospace,Menlo,Consolas,"Liberation Mono",monospace}}
.meter{{display:inline-block;width:90px;height:9px;background:var(--faint);border-radius:2px;overflow:hidden;
vertical-align:middle}}
.meter i{{display:block;height:100%;background:var(--blue)}}
footer{{color:var(--soft);font-size:14px;border-top:1px solid var(--line)}}
footer .inner{{padding-top:14px;padding-bottom:30px}}
@media (max-width:560px){{
.facts{{grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px 16px}}
.inner{{padding:0 16px}}
nav ul{{flex-wrap:nowrap;overflow-x:auto;margin:0 -16px;padding:0 16px 14px}}
nav a{{white-space:nowrap}}
.tiles{{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}}
.tile{{padding:10px 12px}}
.tile>b{{font-size:26px}}
.gallery,.gallery.small{{grid-template-columns:repeat(auto-fill,minmax(104px,1fr));gap:8px}}
.gallery.large{{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}}
.gallery figcaption{{font-size:13px;padding:6px 8px}}
.gallery.small figcaption{{font-size:12.5px;padding:6px}}
th,td{{padding-right:12px}}
tbody th{{min-width:6em}}
thead th+th.names{{min-width:8em}}
thead th+th.sentences{{min-width:16em}}
}}
@media print{{
:root{{{_LIGHT};--paper:#fff}}
*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
body{{font-size:11pt}}
nav,.enlarge,dialog{{display:none}}
.inner{{max-width:none;padding:0}}
figure,.tile,.callout,tr{{break-inside:avoid}}
h2,h3{{break-after:avoid}}
.scroll{{overflow:visible}}
table{{font-size:9pt}}
th,td{{padding-right:8px}}
tbody th{{min-width:0}}
.meter{{width:50px}}
.tiles{{grid-template-columns:repeat(4,1fr)}}
.charts{{grid-template-columns:1fr 1fr}}
details:not([open]){{display:none}}
.gallery{{grid-template-columns:repeat(6,1fr)}}
}}
"""

# A small window of panes; glass keeps its colours in the dark.
MARK: Final = (
    '<svg viewBox="0 0 32 32" aria-hidden="true"><path fill="#2b2833" d="M4 32V15a12 12 0 0 1 24 0v17z"/>'
    '<path fill="#2f66c4" d="M6 19h9v11H6z"/><path fill="#c0344c" d="M17 19h9v11h-9z"/>'
    '<path fill="#e0a12c" d="M15 5.1V17H6v-2a10 10 0 0 1 9-9.9z"/>'
    '<path fill="#2c8a64" d="M17 5.1V17h9v-2a10 10 0 0 0-9-9.9z"/></svg>'
)


def _band() -> str:
    """A strip of slanted panes along the top of a page; it repeats, so that any width is filled."""
    colours = ("#2f66c4", "#7a4aa8", "#2c8a64", "#c0344c", "#2a7f93", "#e0a12c", "#27509c", "#8d2f5f")
    edges = (0, 30, 52, 92, 118, 140, 178, 204)
    leans = (3, -4, 5, -3, 4, -5, 3, -2)
    panes = []
    for number in range(-1, len(colours) + 1):  # one more at each end: leaning panes reach over the edge
        turn, place = divmod(number, len(colours))
        after_turn, after = divmod(number + 1, len(colours))
        left, right = edges[place] + 240 * turn + 1, edges[after] + 240 * after_turn - 1
        lean, next_lean = leans[place], leans[after]
        points = f"{left + lean},1.5 {right + next_lean},1.5 {right - next_lean},12.5 {left - lean},12.5"
        panes.append(f'<polygon fill="{colours[place]}" points="{points}"/>')
    return (
        '<svg class="window" aria-hidden="true"><defs><pattern id="panes" width="240" height="14" '
        f'patternUnits="userSpaceOnUse">{"".join(panes)}</pattern></defs>'
        '<rect width="100%" height="14" fill="url(#panes)"/></svg>'
    )


BAND: Final = _band()
