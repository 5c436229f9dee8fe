"""The style sheet in three parts: colours for light and dark, what charts need, and all else of a
page. No markup here.
"""

COLOURS = """
:root { color-scheme: light dark; --ground: #fff; --sunk: #f6f6f3; --ink: #1d1d1b; --soft: #66665f;
  --hair: #e2e1da; --c1: #2b6bd9; --c2: #c2600a; --c3: #12805c; --c4: #7d4fc0; --c5: #c2323f;
  --c6: #77776f; --note: #f3ecff; --note-ink: #5a2ea6; --alarm: #fdecec; --alarm-ink: #a11b28;
  --good: #e6f5ee; --good-ink: #0d6346; --warn: #fff4dc; --warn-ink: #7a4b00; }
@media (prefers-color-scheme: dark) { :root { --ground: #16171a; --sunk: #1e2025; --ink: #e8e7e2;
  --soft: #9d9d96; --hair: #34363c; --c1: #74a7ff; --c2: #f0a04b; --c3: #4fc99b; --c4: #b795f2;
  --c5: #f5808a; --c6: #a3a39c; --note: #2b2140; --note-ink: #cdb6ff; --alarm: #401c20;
  --alarm-ink: #ffb3b9; --good: #143328; --good-ink: #8fe0bf; --warn: #3a2c10;
  --warn-ink: #f5cf86; } }
"""

CHARTS = """
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); }
svg text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg .label { fill: var(--ink); font-size: 12.5px; }
svg .tag { fill: var(--ground); font-weight: 700; font-size: 10.5px; pointer-events: none; }
svg .tag.c6 { font-size: 8.5px; }
.grid { stroke: var(--hair); } .zero { stroke: var(--soft); stroke-dasharray: 2 3; }
.curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.curve.raw { stroke-width: 1; opacity: .3; } .curve.thin { stroke-width: 1; opacity: .6; }
.curve.dashed { stroke-dasharray: 5 3; }
.dot { fill: currentColor; stroke: var(--ground); } .whisker { stroke: currentColor;
  stroke-width: 2; opacity: .65; } .whisker.c6 { opacity: .35; }
.dot.hollow { fill: var(--ground); stroke: currentColor; stroke-width: 1.5; }
.rail { stroke: var(--hair); stroke-width: 1.5; }
.span { stroke: var(--c6); stroke-width: 2; } .mark { stroke: var(--c1); stroke-width: 2; }
.mark.before { fill: var(--ground); } .mark.after { fill: var(--c1); }
"""

PAGE = """
* { box-sizing: border-box; }
html { scroll-padding-top: 3.2rem; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, .strip > div { max-width: 1140px; margin: 0 auto; padding: 0 20px; }
.strip { position: sticky; top: 0; z-index: 5; background: var(--note); color: var(--note-ink);
  font-size: 13px; padding: 6px 0; }
.strip.alarm { background: var(--alarm); color: var(--alarm-ink); position: static; }
header { padding: 28px 0 4px; }
.eyebrow { color: var(--soft); font-size: 13px; margin: 0; }
h1 { font-size: 28px; line-height: 1.2; margin: 2px 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 44px 0 4px; padding-top: 14px; border-top: 1px solid var(--hair); }
h3 { font-size: 16px; margin: 26px 0 6px; }
h4 { font-size: 14px; margin: 0 0 6px; }
p { margin: 6px 0 12px; max-width: 74ch; }
.soft, .lead { color: var(--soft); }
.chips { display: flex; flex-wrap: wrap; gap: 6px; padding: 0; margin: 0 0 8px; list-style: none; }
.chips li, .chip { border: 1px solid var(--hair); border-radius: 99px; padding: 1px 10px;
  font-size: 13px; overflow-wrap: anywhere; }
.good { background: var(--good); color: var(--good-ink); border-color: transparent !important; }
.alarm { background: var(--alarm); color: var(--alarm-ink); border-color: transparent !important; }
.warn { background: var(--warn); color: var(--warn-ink); border-color: transparent !important; }
.note { background: var(--note); color: var(--note-ink); border-color: transparent !important; }
.tiles { display: grid; gap: 10px; margin: 16px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
.tile { background: var(--sunk); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tile span { font-size: 13px; color: var(--soft); display: block; }
.tile.alarm { background: var(--alarm); } .tile.good { background: var(--good); }
.tile.warn { background: var(--warn); } .tile.alarm, .tile.good, .tile.warn { color: var(--ink); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 14px; margin: 8px 0 0; }
a { color: var(--c1); text-decoration: none; } a:hover { text-decoration: underline; }
.charts { display: grid; gap: 18px 26px; margin: 10px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.charts.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 480px; }
figcaption { font-weight: 600; font-size: 14px; }
figure svg { width: 100%; height: auto; display: block; touch-action: pan-y; }
.key { list-style: none; margin: 2px 0 4px; padding: 0; display: flex; flex-wrap: wrap;
  gap: 2px 14px; font-size: 12.5px; color: var(--soft); }
.ball { display: inline-block; min-width: 17px; height: 17px; line-height: 17px; border-radius: 9px;
  text-align: center; font-size: 11px; margin-right: 5px; background: currentColor;
  -webkit-text-fill-color: var(--ground); }
.swatch { display: inline-block; width: 16px; height: 0; border-top: 3px solid currentColor;
  margin-right: 5px; vertical-align: middle; }
.swatch.dashed { border-top-style: dashed; }
.cross { stroke: var(--soft); visibility: hidden; } .cross.on { visibility: visible; }
#told { position: fixed; z-index: 9; pointer-events: none; background: var(--ink);
  color: var(--ground); font-size: 12px; line-height: 1.45; border-radius: 6px; padding: 5px 9px;
  white-space: pre; visibility: hidden; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: 8px 0 14px; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px 6px 0; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--hair); }
th { font-weight: 600; color: var(--soft); } thead th { vertical-align: bottom; }
th:first-child, td.text, th.text { text-align: left; }
tbody th { color: var(--ink); white-space: normal; max-width: 250px; }
tr.own { background: var(--sunk); } tr.ours th { font-weight: 700; }
td.text { white-space: normal; min-width: 190px; }
td.drift { color: var(--c5); font-weight: 650; }
td small { display: block; color: var(--soft); }
.interval { width: 84px; height: 10px; display: block; margin-left: auto; }
.spark { width: 120px; height: 20px; display: block; }
.stage { display: grid; grid-template-columns: 80px 70px 1fr; gap: 4px 10px; font-size: 14px;
  max-width: 560px; align-items: center; font-variant-numeric: tabular-nums; }
.stage i { height: 10px; border-radius: 3px; background: var(--c1); display: block; }
.group { border: 1px solid var(--hair); border-radius: 10px; padding: 14px 16px; margin: 14px 0; }
.pair { display: grid; gap: 22px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.pair > section { min-width: 0; }
.attempts { display: flex; flex-wrap: wrap; gap: 4px; margin: 4px 0 10px; font-size: 12px; }
.attempts span { padding: 0 7px; border-radius: 4px; border: 1px solid var(--hair);
  font-variant-numeric: tabular-nums; }
pre { margin: 4px 0 8px; background: var(--sunk); border-radius: 8px; padding: 9px 12px;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 440px; overflow: auto; }
pre.short { max-height: 150px; margin: 0; padding: 6px 10px; }
pre.code { counter-reset: row; padding-left: 0; }
pre.code > span { display: block; padding-left: 46px; position: relative; min-height: 1.5em; }
pre.code > span::before { counter-increment: row; content: counter(row);
  position: absolute; left: 0; width: 34px; text-align: right; color: var(--soft); opacity: .75; }
pre.code > .bad { background: var(--alarm); }
.tk { color: var(--c4); } .ts { color: var(--c3); } .tc { color: var(--soft); font-style: italic; }
.tn { color: var(--c2); } .tf { color: var(--c1); }
dl { display: grid; grid-template-columns: minmax(84px, auto) 1fr; gap: 3px 10px; margin: 8px 0;
  font-size: 13.5px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
details { margin: 4px 0; } summary { cursor: pointer; }
details.call { border-left: 2px solid var(--hair); padding-left: 10px; margin: 5px 0; }
details.call > summary { display: grid; align-items: center; gap: 8px; font-size: 13px;
  grid-template-columns: minmax(90px, auto) 1fr auto; list-style: none; }
.call summary code { font-weight: 600; overflow-wrap: anywhere; }
.call summary code::before { content: "\\25b8 "; color: var(--soft); }
.call[open] > summary code::before { content: "\\25be "; }
.lane { height: 8px; background: var(--sunk); border-radius: 3px; position: relative;
  min-width: 40px; }
.lane i { position: absolute; top: 0; bottom: 0; border-radius: 3px; background: var(--c1);
  min-width: 2px; } .lane i.error { background: var(--c5); }
.cap { color: var(--soft); font-size: 12px; margin: 6px 0 0; }
footer { color: var(--soft); font-size: 13px; margin: 44px 0; padding-top: 12px;
  border-top: 1px solid var(--hair); }
@media (max-width: 560px) { main, .strip > div { padding: 0 14px; } h1 { font-size: 23px; }
  .tile b { font-size: 21px; } .group { padding: 10px 11px; }
  dl { grid-template-columns: 66px 1fr; } }
"""
