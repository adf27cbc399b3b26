"""One page of what came out: results with intervals, learning curves, failures, stage times. Then everything goes to MLflow.

Writes artifacts/report/index.html, report.md and curves.png. MLflow is reached from a child process with a time limit; an outage
is a line on the terminal, and `python -m stages.track` sends the rest later.
"""

from __future__ import annotations

import base64
import html
import json
from typing import Any

from stages import track
from stages.stage import Job, main

COLUMNS = (
    ("pass rate", "pass_rate", "{:.0%}"),
    ("faster than eager", "faster_eager", "{:.0%}"),
    ("faster than compile", "faster_compile", "{:.0%}"),
    ("speed-up over eager", "speedup_eager", "{:.2f}"),
    ("speed-up over compile", "speedup_compile", "{:.2f}"),
    ("tasks solved", "solved", "{:.0%}"),
    ("turns", "turns", "{:.1f}"),
    ("episodes", "episodes", "{:.0f}"),
)


def run(job: Job) -> None:
    section = job.params.report
    shown = {"teacher", *job.params.evaluate.checkpoints}
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (job.root / "artifacts/eval").glob("*/results.json")]
    results = sorted((result for result in results if result["player"] in shown), key=lambda result: (result["order"], result["player"]))
    metrics = [json.loads(path.read_text(encoding="utf-8")) for path in (job.root / "artifacts/metrics").glob("*.json")]
    metrics.sort(key=lambda body: body["finished"])
    folder = job.out("artifacts/report")
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(results, metrics, folder / "curves.png")
    parts = [
        ("Results on held-out tasks", table(["player", *(name for name, _, _ in COLUMNS)], [result_row(result) for result in results])),
        ("What became of the episodes", table(*status_rows(results))),
        ("Failures of the last checkpoint", table(["operators", "status", "reason", "trajectory"], failures(results, section.failures))),
        ("Stages", table(["stage", "seconds", "what came out"], [[b["stage"], f"{b['seconds']:.0f}", b.get("headline", "")] for b in metrics])),
    ]
    note = "95 % intervals in brackets, by bootstrap over tasks. Rates are over all episodes, speed-ups (geometric mean) over the correct ones."
    markdown = [f"# {section.title}", note, *(f"## {name}\n\n{as_markdown(rows)}" for name, rows in parts)]
    if picture:
        markdown.insert(2, "![learning curves](curves.png)")
    (folder / "report.md").write_text("\n\n".join(markdown) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(page(section.title, note, parts, (folder / "curves.png").read_bytes() if picture else None), encoding="utf-8")
    print(track.in_background(job.root))


def result_row(result: dict[str, Any]) -> list[str]:
    found, row = result["figures"], [result["player"]]
    for _, name, shape in COLUMNS:
        value, low, high = (found.get(name + end) for end in ("", "_low", "_high"))
        row.append("-" if value is None else shape.format(value) + (f" [{shape.format(low)}, {shape.format(high)}]" if low is not None else ""))
    return row


def status_rows(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = sorted({status for result in results for status in result["statuses"]}, key=lambda s: -sum(r["statuses"].get(s, 0) for r in results))
    return ["player", *names], [[result["player"], *(str(result["statuses"].get(name, 0)) for name in names)] for result in results]


def failures(results: list[dict[str, Any]], count: int) -> list[list[str]]:
    """Episodes of the last checkpoint that did not end correct, one a task first."""
    trained = [result for result in results if result["checkpoint"]]
    if not trained:
        return []
    wrong = [e for e in trained[-1]["episodes"] if e["status"] != "correct"]
    seen: dict[str, int] = {}
    for episode in wrong:
        episode["nth"] = seen[episode["task"]] = seen.get(episode["task"], 0) + 1
    wrong.sort(key=lambda e: (e["nth"], e["task"]))
    return [[", ".join(e["operators"]), e["status"] or e["stop"], (e["reason"] or "")[:200], e["trajectory"]] for e in wrong[:count]]


def table(head: list[str], rows: list[list[str]]) -> list[list[str]]:
    return [head, *rows]


def as_markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def page(title: str, note: str, parts: list[tuple[str, list[list[str]]]], picture: bytes | None) -> str:
    """A page that needs nothing from the network."""
    body = [f"<h1>{html.escape(title)}</h1><p>{html.escape(note)}</p>"]
    if picture:
        body.append(f'<img alt="learning curves" src="data:image/png;base64,{base64.b64encode(picture).decode()}">')
    for name, rows in parts:
        cells = ["".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) for tag, row in zip(["th"] + ["td"] * len(rows), rows, strict=False)]
        body.append(f"<h2>{html.escape(name)}</h2><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#222}img{max-width:100%}"
        "table{border-collapse:collapse;font-size:13px}td,th{padding:.3rem .7rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}"
        "tr:hover{background:#f6f6f6}h2{margin-top:2rem}"
    )
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>{"".join(body)}</html>\n'


def draw(results: list[dict[str, Any]], metrics: list[dict[str, Any]], path) -> bool:
    """Rates by checkpoint with their intervals, and what each training stage recorded. False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = [(body["stage"], body["journal"]) for body in metrics if len(body["journal"]) > 1]
    names = [name for name in ("loss", "reward", "value_loss", "explained_var_mc", "entropy") if any(name in row for _, rows in curves for row in rows)]
    figure, axes = pyplot.subplots(1, 1 + len(names), figsize=(4.2 * (1 + len(names)), 3.4), squeeze=False)
    trained = [result for result in results if "pass_rate" in result["figures"]]
    for name, label in (("pass_rate", "correct"), ("faster_eager", "faster than eager"), ("faster_compile", "faster than compile")):
        values = [result["figures"][name] for result in trained]
        spans = [[v - r["figures"][f"{name}_low"] for v, r in zip(values, trained, strict=True)], [r["figures"][f"{name}_high"] - v for v, r in zip(values, trained, strict=True)]]
        axes[0][0].errorbar([result["player"] for result in trained], values, yerr=[[max(0.0, x) for x in span] for span in spans], marker="o", capsize=3, label=label)
    axes[0][0].set(title="share of episodes, held-out tasks", ylim=(-0.02, 1.02))
    axes[0][0].tick_params(axis="x", rotation=45)
    axes[0][0].legend(fontsize=7)
    for axis, name in zip(axes[0][1:], names, strict=True):
        for stage, rows in curves:
            points = [(index, row[name]) for index, row in enumerate(rows) if isinstance(row.get(name), (int, float))]
            if points:
                axis.plot(*zip(*points, strict=True), label=stage)
        axis.set(title=name, xlabel="step")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


if __name__ == "__main__":
    main(__file__, run)
