"""The table of `weft chaos`."""

from __future__ import annotations

from rich.console import Group, RenderableType

from weft.chaos.report import Report, Row
from weft.fleet.faults import Kind
from weft.report.tables import list_table
from weft.report.words import seconds


def chaos_table(report: Report) -> RenderableType:
    """One line for each run, then what all of them say."""
    columns = (
        "run",
        "end",
        "repeated",
        "difference",
        "loss",
        "what went wrong (seconds to recover)",
    )
    return Group(
        list_table(columns, [_cells(row) for row in report.rows]),
        list_table(("", report.strategy), _summary(report)),
    )


def _cells(row: Row) -> tuple[str, ...]:
    what = "; ".join(
        f"{fault.kind.value} {fault.device} at {fault.step}"
        + (f" ({fault.recovered_s:.2f})" if fault.recovered_s is not None else "")
        for fault in row.faults
        if fault.kind != Kind.restart
    )
    return (
        str(row.run),
        row.outcome.value,
        str(row.repeated),
        "-" if row.difference is None else f"{row.difference:.1e}",
        "-" if row.final_loss is None else f"{row.final_loss:.3f}",
        f"{what} {row.error}".strip(),
    )


def _summary(report: Report) -> list[tuple[str, str]]:
    document = report.document()
    median, p95 = (document["recovery_s"][key] for key in ("median", "p95"))
    exact = all(row.exact for row in report.rows)
    losses = document["undisturbed_loss"]
    return [
        ("runs", f"{document['runs']}, {document['hangs']} hang, {document['lost_runs']} lost, "
                 f"{document['resumed_after_failure']} resumed after a failure"),
        ("faults", ", ".join(f"{count} {kind}" for kind, count in document["faults"].items())),
        ("recovery", "-" if median is None else f"median {seconds(median)}, p95 {seconds(p95)}"),
        ("repeated", f"{document['repeated']} minibatches"),
        ("weights", "as in an undisturbed run" if exact and not document["unequal"] else
                    f"{document['unequal']} runs differ from an undisturbed run" if exact else
                    "depend on when things happen, with this strategy and these options"),
        ("rounding", "-" if report.rounding is None else
                     f"two undisturbed runs with different plans differ by {report.rounding:.0e}"),
        ("loss", "-" if losses is None else f"{losses[0]:.3f} to {losses[1]:.3f} undisturbed"),
        *_noise(report),
    ]  # fmt: skip


def _noise(report: Report) -> list[tuple[str, str]]:
    """Whether the losses with faults lie in the range of several seeds without."""
    if report.above_noise is None:
        return []
    return [("noise", f"{report.above_noise} of {len(report.rows)} runs have a larger loss than any of "
                      f"{len(report.undisturbed)} seeds without faults")]  # fmt: skip
