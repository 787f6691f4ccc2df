"""The proofs' own machinery: what passed is not repeated, what hangs is ended, a tenth is a tenth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from proofs import docs, matrix
from proofs.book import Book, Outcome, table
from proofs.case import Case, tenth
from proofs.worker import Worker


def cases(count: int, digest: str = "now", promised: bool = True) -> list[Case]:
    return [Case("matrix", f"case {n}", lambda: "", digest=digest, promised=promised)
            for n in range(count)]  # fmt: skip


def test_a_proof_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    first, second, third = cases(3)
    book = Book(tmp_path / "book.jsonl")
    book.add(Outcome("matrix", first.name, "now", "passed", 1.0, "fine"))
    book.add(Outcome("matrix", second.name, "now", "failed", 1.0, "broken"))
    with book.path.open("a") as file:
        file.write('{"proof": "mat')  # it was cut off here
    again = Book(book.path)
    assert again.due([first, second, third]) == [second, third]
    assert "1 passed, 1 failed, 0 skipped, 1 left" in table("matrix", [first, second, third], again)


def test_what_passed_with_other_code_is_tried_again(tmp_path: Path) -> None:
    book = Book(tmp_path / "book.jsonl")
    book.add(Outcome("matrix", "case 0", "before", "passed", 1.0))
    assert len(book.due(cases(1))) == 1
    assert Book(book.path, fresh=True).due(cases(1, "before"))


def test_a_case_that_takes_too_long_has_failed_and_the_next_one_gets_a_new_process() -> None:
    case = next(case for case in matrix.cases() if case.name == "coopai: own loss")  # it is refused
    worker = Worker()
    try:
        hasty = worker.tried(dataclasses.replace(case, limit_s=0.0))
        assert hasty.verdict == "failed"
        assert "no end after" in hasty.says
        assert worker.tried(case).verdict == "passed"
    finally:
        worker.close()


def test_a_tenth_is_the_same_for_the_same_seed_and_holds_only_promises() -> None:
    many = cases(200)
    names = [case.name for case in tenth(many, "a")]
    assert names == [case.name for case in tenth(many, "a")]
    assert names != [case.name for case in tenth(many, "b")]
    assert len(names) == 20
    assert not tenth(cases(10, promised=False), "a")


def test_commands_of_a_page_are_read_as_a_reader_would_type_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    weft plan lenet5 --fleet f.toml \\\n        -s chain      # a remark\n"
        "    weft node --name pi --listen tcp/0.0.0.0:7447     on the first device\n"
        "    weft plan MODEL [OPTIONS]\n    other command\n"
    )
    assert list(docs.commands(page)) == [
        "weft plan lenet5 --fleet f.toml -s chain",
        "weft node --name pi --listen tcp/0.0.0.0:7447",
    ]


@pytest.mark.parametrize(
    ("command", "skipped"),
    [
        ("weft train lenet5 --join tcp/192.0.2.7:7447", True),
        ("weft reproduce hiertrain", True),
        ("weft reproduce hiertrain --quick", False),
    ],
)
def test_what_needs_devices_or_hours_is_skipped_with_a_reason(command: str, skipped: bool) -> None:
    assert bool(docs.reason_to_skip(command)) is skipped
