"""The isolation report as one HTML page: it loads nothing, reads on a phone, and is printed on one page.

Each colour comes with a pattern or a text, so that the page can be read without colours. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vmpin.domain.terminal import printable
from vmpin.features.isolation import isolation_text as texts

_STYLE = """
:root{--ink:#1b1f24;--soft:#56606b;--page:#fff;--edge:#c3cad1;--had:#cfe6f5;--kernel:#e69f00;--others:#0b4f8a;
--unidentified:#9aa3ac;--hypervisor:#7a4e9c;--unseen:#fff;--warn:#8a5a00}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebee;--soft:#a3adb7;--page:#14171a;--edge:#4a525b;--had:#1f4a66;
--kernel:#e69f00;--others:#7cc4ff;--unidentified:#79828b;--hypervisor:#c39be0;--unseen:#14171a;--warn:#f0c060}}
*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--page);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}h1{font-size:1.3rem;margin:.2rem 0}h2{font-size:1.05rem;margin:1.2rem 0 .3rem;
overflow-wrap:anywhere}p{margin:.35rem 0;overflow-wrap:anywhere}.soft,small{color:var(--soft)}
.figure{font-size:1.9rem;font-weight:650}.bar{width:100%;height:1.4rem;display:block;border:1px solid var(--edge)}
.had{fill:var(--had)}.kernel{fill:var(--kernel)}.others{fill:var(--others)}.unidentified{fill:var(--unidentified)}
.hypervisor{fill:var(--hypervisor)}.unseen{fill:var(--unseen)}
.key{width:1.1em;height:1.1em;vertical-align:-.2em;border:1px solid var(--edge);margin-right:.4em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{text-align:left;vertical-align:top;
padding:.22rem .7rem .22rem 0;border-bottom:1px solid var(--edge);overflow-wrap:anywhere}
td.n,th.n{text-align:right}td.n,th.n,.verdict{white-space:nowrap}.chart{width:100%;height:4.5rem;display:block;
border-bottom:1px solid var(--edge)}.todo{border-left:4px solid var(--kernel);padding-left:.7rem}
.slo{display:inline-block;border:1px solid var(--edge);border-radius:3px;padding:.05rem .5rem;font-weight:600}
.slo.missed,.slo.undecided{border-color:var(--warn);color:var(--warn)}ul{margin:.2rem 0;padding-left:1.2rem}
details>summary{cursor:pointer;font-weight:600;margin-top:.6rem;overflow-wrap:anywhere}
@media (max-width:40rem){body{padding:.7rem}.wide{display:none}td,th{padding-right:.4rem;font-size:.86rem}
.figure{font-size:1.5rem}}
@page{size:A4;margin:12mm}
@media print{:root{--ink:#000;--soft:#333;--page:#fff;--edge:#888;--had:#cfe6f5;--others:#0b4f8a;--hypervisor:#7a4e9c;
--unidentified:#9aa3ac;--unseen:#fff;--warn:#000}body{padding:0;max-width:none;font-size:9.5pt;line-height:1.3;
print-color-adjust:exact;-webkit-print-color-adjust:exact}.chart{height:2.6rem}h1{font-size:13pt}h2{font-size:11pt}
.figure{font-size:18pt}td,th{padding-top:.1rem;padding-bottom:.1rem}section,tr,.todo{break-inside:avoid}
h2{break-after:avoid}thead{display:table-header-group}details.many:not([open]){display:none}
details.many[open]{break-before:page}}
"""
#: Over the plain colour, so that no two parts look the same without colours.
_PATTERNS = """<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="kernel" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" class="kernel"/><rect width="2" height="6" fill="#000" opacity=".35"/></pattern>
<pattern id="unidentified" width="5" height="5" patternUnits="userSpaceOnUse"><rect width="5" height="5"
class="unidentified"/><circle cx="2.5" cy="2.5" r="1.1" fill="#000" opacity=".45"/></pattern>
<pattern id="hypervisor" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6"
class="hypervisor"/><rect width="6" height="2" fill="#fff" opacity=".5"/></pattern>
<pattern id="unseen" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="8"
height="8" class="unseen"/><rect width="1" height="8" fill="#777"/></pattern></defs></svg>"""
_PLAIN = ("had", "others")


def page(found: Mapping[str, Any], host: str) -> str:
    """The document as a page. :param host: the node's name."""
    pods = found["pods"]
    slo = found.get("slo")
    single = len(pods) == 1
    head = f"Isolation of {texts.title(pods[0])}" if single else "Isolation of exclusive CPUs"
    body = [f"<h1>{_text(head)}</h1>",
            f'<p class="soft">Node {_text(host)}, {_text(found["since"])} to {_text(found["until"])}</p>']
    if slo is not None:
        body.append(f'<p>Objective {slo["percent"]:g} %: {_slo(slo["verdict"])}</p>')
    if single:
        body.append(_pod(pods[0], heading=False))
    elif not pods:
        body.append("<p>No pod has, or had, exclusive CPUs in that time.</p>")
    else:
        body += [_table(pods, slo is not None), _worst_of(pods)]
        body += [f'<details class="many"><summary>{_text(texts.title(pod))}</summary>{_pod(pod, heading=False)}'
                 "</details>" for pod in pods]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width,initial-scale=1"><title>{_text(head)}</title><style>{_STYLE}</style></head>'
            f'<body>{_PATTERNS}{"".join(body)}</body></html>\n')


def _pod(pod: Mapping[str, Any], heading: bool) -> str:
    count = texts.cpu_count(pod["cpus"])
    cpus = f"{texts.exclusive_cpus(count)}: {pod['cpus']}" if count else "no exclusive CPUs now"
    ended = " (it has ended)" if pod["ended"] else ""
    missing = [(name, pod["parts"][name]["seconds"]) for name in texts.PARTS if name != "had"]
    return "".join((
        "<section>", f"<h2>{_text(texts.title(pod))}</h2>" if heading else "",
        f'<p><span class="figure">{texts.percent(pod["share"]["had"])}</span> of its CPUs’ time for itself, '
        f'running or idle</p><p class="soft">{texts.bounds(pod)} · {_text(cpus)}{ended} · {_text(pod["since"])} to '
        f'{_text(pod["until"])}</p>',
        _bar([(name, pod["parts"][name]["seconds"]) for name in texts.PARTS], "All the time of its CPUs"),
        "<p><small>What was missing, enlarged:</small></p>" if any(spent for _, spent in missing) else "",
        _bar(missing, "What was missing"), _parts(pod), _chart(pod), _cpus(pod), "</section><section>",
        _worst(pod), _programs(pod), _drift(pod), "<h2>What sampling could not see</h2><ul>",
        *(f"<li>{_text(text)}</li>" for text in pod["limits"]), "</ul></section>"))


def _fill(name: str) -> str:
    return f'class="{name}"' if name in _PLAIN else f'fill="url(#{name})"'


def _bar(parts: Sequence[tuple[str, float]], label: str) -> str:
    """"" for nothing at all."""
    total = sum(spent for _, spent in parts)
    if not total:
        return ""
    found, at = [], 0.0
    for name, spent in parts:
        width = 1000 * spent / total
        if spent:
            found.append(f'<rect {_fill(name)} x="{at:.3f}" y="0" width="{width:.3f}" height="20"><title>'
                         f"{texts.PARTS[name]}: {texts.seconds(spent)}</title></rect>")
        at += width
    return (f'<svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{label}">'
            f'{"".join(found)}</svg>')


def _parts(pod: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td><svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect {_fill(name)} width="10" height="10"/>'
        f'</svg>{text}</td><td class="n">{texts.percent(pod["parts"][name]["share"])}</td>'
        f'<td class="n">{texts.seconds(pod["parts"][name]["seconds"])}</td></tr>'
        for name, text in texts.PARTS.items())
    return f"<table>{rows}</table>"


def _chart(pod: Mapping[str, Any]) -> str:
    """The share that was foreign, over time."""
    parts = pod["bins"]
    most = max((1 - each["share"] for each in parts if each["share"] is not None), default=0.0)
    scale = next((step for step in (0.001, 0.01, 0.05, 0.1, 0.25, 0.5) if most <= step), 1.0)
    width = 1000 / max(1, len(parts))
    found = []
    for index, each in enumerate(parts):
        at = f'x="{index * width:.2f}" width="{max(0.5, width - 1.5):.2f}"'
        if each["share"] is None:
            found.append(f'<rect {_fill("unseen")} {at} y="0" height="100"><title>{_text(each["start"])}: not seen'
                         "</title></rect>")
            continue
        height = max(0.6, 100 * (1 - each["share"]) / scale)
        found.append(f'<rect class="others" {at} y="{100 - height:.2f}" height="{height:.2f}"><title>'
                     f'{_text(each["start"])}: {texts.percent(1 - each["share"])}</title></rect>')
    return (f'<h2>Not its own, over time</h2><p class="soft"><small>The full height is {100 * scale:g} %; hatched: '
            f'not seen.</small></p><svg class="chart" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
            f'aria-label="Share of the time that was not the pod’s own">{"".join(found)}</svg>'
            f'<p class="soft"><small>{_text(pod["since"])} to {_text(pod["until"])}</small></p>')


def _cpus(pod: Mapping[str, Any]) -> str:
    found = [each for each in pod["foreign_by_cpu"] if each["seconds"]]
    if not found:
        return ""
    return "<p>Foreign by CPU: " + ", ".join(
        f"{'former' if each['cpu'] is None else each['cpu']}: {texts.seconds(each['seconds'])}"
        for each in found) + "</p>"


def _worst(pod: Mapping[str, Any]) -> str:
    worst = pod["worst"]
    text = texts.worst_sentence(pod)
    found = f"<h2>Worst minute</h2><p>{_text(text[0].upper() + text[1:])}.</p>"
    if worst is not None:
        cause = texts.cause_sentence(worst)
        found += (f'<p>{_text(cause[0].upper() + cause[1:])}.</p><p class="todo"><b>What to do:</b> '
                  f'{_text(worst["advice"])}.</p>')
    return found


def _programs(pod: Mapping[str, Any]) -> str:
    rows = "".join(f'<tr><td class="n">{texts.seconds(each["seconds"])}</td><td>{_text(each["title"])}</td></tr>'
                   for each in pod["foreign_by_program"][:texts.MOST_PROGRAMS])
    return f"<h2>Foreign programs in the whole period</h2><table>{rows}</table>" if rows else ""


def _drift(pod: Mapping[str, Any]) -> str:
    text = texts.drift_sentence(pod)
    return f"<h2>Drift</h2><p>{_text(text[0].upper() + text[1:])}.</p>" if text else ""


def _slo(verdict: str) -> str:
    return f'<span class="slo {verdict}">{texts.SLO[verdict]}</span>'


def _table(pods: Sequence[Mapping[str, Any]], objective: bool) -> str:
    heads = [*texts.TABLE, *(["SLO"] if objective else [])]
    named = {"POD": "", "CPUS": "wide", "SLO": "verdict", "AT LEAST": "n wide", "KERNEL": "n wide", "OTHERS": "n wide"}
    css = [named.get(name, "n") for name in heads]
    head = "".join(f'<th class="{name}">{text if text == "SLO" else text.capitalize()}</th>'
                   for name, text in zip(css, heads, strict=True))
    rows = "".join("<tr>" + "".join(f'<td class="{name}">{_text(cell)}</td>' for name, cell in
                                    zip(css, texts.row(pod, objective), strict=True)) + "</tr>" for pod in pods)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _worst_of(pods: Sequence[Mapping[str, Any]]) -> str:
    """The worst minutes of several pods, the worst first."""
    found = sorted((pod for pod in pods if pod["worst"] is not None), key=lambda pod: -pod["worst"]["share"])[:8]
    if not found:
        return "<p>No minute had foreign time above the measurement error.</p>"
    return "<h2>Worst minutes</h2>" + "".join(
        f'<section><p><b>{_text(texts.title(pod))}</b>: {_text(texts.worst_sentence(pod))}; '
        f'{_text(texts.cause_sentence(pod["worst"]))}.</p><p class="todo">{_text(pod["worst"]["advice"])}.</p>'
        '</section>'
        for pod in found)


def _text(text: str) -> str:
    return escape(printable(text))
