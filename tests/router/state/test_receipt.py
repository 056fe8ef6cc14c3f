"""The receipt in headers and log."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from headway.router.state.receipt import Receipt, log_line, receipt_lines, route, server_timing

SPLIT = Receipt(
    request_id="r1",
    strategy="disaggregated",
    reason="least work",
    length_class="long",
    engines=("prefill/10.0.0.1:8100", "decode/10.0.0.2:8200"),
    queue_s=0.0012,
    prefill_s=1.5,
    handoff_s=0.0004,
    first_decode_s=0.05,
)


def test_server_timing_is_in_milliseconds():
    assert server_timing(SPLIT) == (
        b"queue;dur=1.2, prefill;dur=1500.0, handoff;dur=0.4, decode;dur=50.0"
    )


def test_stages_it_did_not_go_through_are_left_out():
    whole = Receipt("r", "unified", "least work", "short", ("all/a:1",), queue_s=0.0)
    assert server_timing(whole) == b"queue;dur=0.0"
    refused = Receipt("r", "unified", "nothing ready", "short")
    assert receipt_lines(refused) == b"x-headway-route: %b\r\n" % route(refused)


def test_route_tells_pools_and_not_where_engines_are():
    assert route(SPLIT) == (
        b'disaggregated; reason="least work"; class="long"; pools="prefill+decode"'
    )


def test_log_line_tells_engines():
    line = json.loads(log_line(SPLIT, status=200, ttft_s=1.23456789, tpot_s=None))
    assert line["engines"] == ["prefill/10.0.0.1:8100", "decode/10.0.0.2:8200"]
    assert (line["class"], line["status"], line["ttft_s"]) == ("long", 200, 1.234568)
    assert "tpot_s" not in line


@given(reason=st.text(), pool=st.text(), request_id=st.text())
def test_no_text_breaks_a_header_or_a_line(reason, pool, request_id):
    receipt = Receipt(request_id, "unified", reason, "short", (pool,), queue_s=0.1)
    assert re.fullmatch(
        rb"x-headway-route: [ -~]*\r\nserver-timing: [ -~]*\r\n", receipt_lines(receipt)
    )
    assert route(receipt).count(b'"') in (4, 6)
    assert "\n" not in log_line(receipt)
    assert json.loads(log_line(receipt))["reason"] == reason
