"""What follows from the code is up to date."""

import pytest
from scripts.generate import ROOT, generated


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_what_follows_from_the_code_is_up_to_date(path):
    assert path.read_text("utf-8") == generated()[path], (
        f"run python scripts/generate.py: {path.relative_to(ROOT)} is older than the code"
    )
