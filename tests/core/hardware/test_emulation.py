"""What an emulation may be asked for, and how that is written down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.hardware.emulation import Emulation, parse
from headway.core.hardware.gpu import GPU_BY_NAME

emulations = st.builds(
    Emulation,
    gpu=st.sampled_from(sorted(GPU_BY_NAME)),
    slow=st.floats(0.01, 1000),
    answer_tokens=st.integers(1, 10**6),
    faults=st.text(max_size=20),
)


@given(emulations)
def test_what_is_written_is_read_again(asked):
    assert parse(str(asked)) == asked


def test_the_name_alone_is_enough():
    assert parse("h100-sxm") == Emulation(gpu="h100-sxm")
    assert str(Emulation(gpu="h100-sxm")) == "h100-sxm"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h1000",
        "{",
        "[]",
        "{}",
        '{"gpu": 3}',
        '{"gpu": "l4", "slow": 0}',
        '{"gpu": "l4", "slow": NaN}',
        '{"gpu": "l4", "slow": Infinity}',
        '{"gpu": "l4", "slow": "4"}',
        '{"gpu": "l4", "answer_tokens": 0}',
        '{"gpu": "l4", "answer_tokens": 1.5}',
        '{"gpu": "l4", "other": 1}',
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(text):
    with pytest.raises(SettingError):
        parse(text)


def test_figures_are_marked_with_all_that_matters():
    said = Emulation(gpu="h100-sxm", slow=2.5).said(4)
    assert said == "emulated 4 x NVIDIA H100 80GB HBM3, 2.5 times slower"
    assert Emulation(gpu="l4").said() == "emulated NVIDIA L4"
