"""A kill may cut a line: it costs that line and no other."""

import pytest

from data.journal import append_lines, read_lines

ROWS = [{"key": "a", "n": 1}, {"key": "ä\n\u2028", "n": None}]


def test_rows_come_back_as_they_were_added(tmp_path):
    path = tmp_path / "new" / "journal.jsonl"
    assert read_lines(path) == []
    append_lines(path, ROWS[:1])
    append_lines(path, ROWS[1:], sync=True)
    append_lines(path, [])
    assert read_lines(path) == ROWS and path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("kept", range(len(b'{"key": "a", "n": 1}\n') + 1))
def test_a_line_cut_anywhere_takes_no_other_with_it(tmp_path, kept):
    path = tmp_path / "journal.jsonl"
    append_lines(path, ROWS[:1])
    path.write_bytes(path.read_bytes()[:kept])
    before = read_lines(path)
    assert before == (ROWS[:1] if kept >= len(b'{"key": "a", "n": 1}') else [])
    append_lines(path, ROWS)
    append_lines(path, ROWS)
    assert read_lines(path) == before + ROWS + ROWS
