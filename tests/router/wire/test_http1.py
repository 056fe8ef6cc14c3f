"""Heads and chunks: what is refused, and that splits change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.router.raw_client import pieces

from headway.router.wire.http1 import (
    BadRequest,
    ChunkedReader,
    HeadReader,
    chunk,
    hop_by_hop,
    lines,
    status_line,
)

START = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n"


def read(parts, max_bytes=65536, max_headers=128):
    reader = HeadReader(max_bytes, max_headers)
    for i, part in enumerate(parts):
        found = reader.feed(part)
        if found is not None:
            head, rest = found
            return head, rest + b"".join(parts[i + 1 :])
    return None


REFUSED = {
    "two lengths": START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "the same length twice": START + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
    "a list of lengths": START + b"Content-Length: 1, 1\r\n\r\n",
    "length and chunks": START + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    "signed length": START + b"Content-Length: +1\r\n\r\n",
    "negative length": START + b"Content-Length: -1\r\n\r\n",
    "hexadecimal length": START + b"Content-Length: 0x1\r\n\r\n",
    "underscored length": START + b"Content-Length: 1_0\r\n\r\n",
    "empty length": START + b"Content-Length:\r\n\r\n",
    "two numbers": START + b"Content-Length: 1 1\r\n\r\n",
    "endless length": START + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "length beyond any file": START + b"Content-Length: 9999999999999999999\r\n\r\n",
    "gzip": START + b"Transfer-Encoding: gzip\r\n\r\n",
    "gzip, chunked": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "chunked, gzip": START + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "chunked twice": START + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
    "chunked in two fields": START + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n",
    "empty coding": START + b"Transfer-Encoding:\r\n\r\n",
    "empty coding, chunked": START + b"Transfer-Encoding: \r\nTransfer-Encoding: chunked\r\n\r\n",
    "identity": START + b"Transfer-Encoding: identity\r\n\r\n",
    "parameters": START + b"Transfer-Encoding: chunked;a=b\r\n\r\n",
    "quoted chunked": START + b'Transfer-Encoding: "chunked"\r\n\r\n',
    "xchunked": START + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunked after vertical tab": START + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded": START + b"A: b\r\n c\r\n\r\n",
    "folded by a tab": START + b"A: b\r\n\tc\r\n\r\n",
    "folded first": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF before a field": START + b"A: b\nContent-Length: 3\r\n\r\n",
    "LF as the blank line": START + b"A: b\r\n\n",
    "bare CR in a value": START + b"A: b\rc\r\n\r\n",
    "CR between fields": START + b"A: b\rContent-Length: 3\r\n\r\n",
    "NUL": START + b"A: b\0c\r\n\r\n",
    "control character": START + b"A: b\x01c\r\n\r\n",
    "space before the colon": START + b"Content-Length : 3\r\n\r\n",
    "tab before the colon": START + b"Content-Length\t: 3\r\n\r\n",
    "no name": START + b": b\r\n\r\n",
    "no colon": START + b"Content-Length\r\n\r\n",
    "name with a space": START + b"A b: c\r\n\r\n",
    "name not ASCII": START + b"Content-L\xe9ngth: 3\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "method in lower case": b"post / HTTP/1.1\r\nHost: a\r\n\r\n",
    "method not served": b"PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n",
    "connect": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "trace": b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "space before the method": b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces before the version": b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
    "tab in the request line": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "space after the version": b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9, said": b"GET / HTTP/0.9\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/1.10": b"GET / HTTP/1.10\r\nHost: a\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/1.1": b"GET / http/1.1\r\nHost: a\r\n\r\n",
    "RTSP": b"OPTIONS / RTSP/1.0\r\nHost: a\r\n\r\n",
    "ICE": b"SOURCE / ICE/1.0\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "no slash": b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "another scheme": b"GET file:///etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "target not ASCII": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "control in the target": b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    "two Hosts": START + b"Host: a\r\n\r\n",
    "two Hosts in 1.0": b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "a list of Hosts": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "Host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "Host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "empty Host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "unknown expectation": START + b"Expect: 200-ok\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_two_servers_could_read_differently_is_refused_however_it_is_split(name):
    data = REFUSED[name]
    for cut in range(len(data)):
        with pytest.raises(BadRequest) as refused:
            read(pieces(data, [cut]))
        assert refused.value.status in {400, 417, 501}
    with pytest.raises(BadRequest):
        read([data[i : i + 1] for i in range(len(data))])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (START + b"\r\n", ("POST", "/v1/x", b"", 0, True)),
        (START + b"Content-Length: 03 \t\r\n\r\n", ("POST", "/v1/x", b"", 3, True)),
        (START + b"transfer-encoding: Chunked\r\n\r\n", ("POST", "/v1/x", b"", None, True)),
        (b"\r\n\r\nGET /?a=b?c HTTP/1.1\r\nHost: a:1\r\n\r\n", ("GET", "/", b"a=b?c", 0, True)),
        (b"GET http://b:2/c?d HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/c", b"d", 0, True)),
        (b"GET http://b HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", ("GET", "/", b"", 0, True)),
        (b"GET /%2e%2E/a%00 HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/%2e%2E/a%00", b"", 0, True)),
        (b"GET //v1///x/%2F// HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/v1/x/%2F", b"", 0, True)),
        (b"GET http://b//c/?d//e/ HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/c", b"d//e/", 0, True)),
        (b"GET // HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/", b"", 0, True)),
        (b"GET / HTTP/1.0\r\n\r\n", ("GET", "/", b"", 0, False)),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", ("GET", "/", b"", 0, True)),
        (START + b"Connection: x, Close\r\n\r\n", ("POST", "/v1/x", b"", 0, False)),
        (START + b"Connection: x\r\nConnection: close\r\n\r\n", ("POST", "/v1/x", b"", 0, False)),
        # A switch of protocols isn't taken up: the body is still a body (Java's client asks).
        (
            START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n",
            ("POST", "/v1/x", b"", 3, True),
        ),
    ],
)
def test_a_valid_head_is_the_same_however_it_is_split(data, expected):
    splits = [[cut] for cut in range(len(data))] + [range(len(data))]
    for cuts in splits:
        head, rest = read([*pieces(data, cuts), b"next"])
        assert (head.method, head.path, head.query, head.length, head.keep_alive) == expected
        assert rest == b"next"


def test_what_follows_the_head_is_left_alone():
    for follows in (b"", b"x", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        assert read([START + b"\r\n" + follows])[1] == follows


def test_names_are_lower_case_and_values_bare():
    head, _ = read([START + b"X-A: \t b \t\r\nX-B:\r\nX-C:\xff\r\n\r\n"])
    assert head.headers == ((b"host", b"a"), (b"x-a", b"b"), (b"x-b", b""), (b"x-c", b"\xff"))


def test_heads_that_differ_in_their_length_alone_are_told_apart():
    for fields in (b"Host: a\r\n%bA: b\r\n", b"%bHost: a\r\nA: b\r\n", b"Host: a\r\nA: b\r\n%b"):
        for length in (b"1", b"22", b"", b"1"):
            line = b"Content-Length: %b\r\n" % length if length else b""
            head, _ = read([b"POST / HTTP/1.1\r\n" + fields % line + b"\r\n"])
            assert head.length == int(length or b"0")
            assert head.headers == ((b"host", b"a"), (b"a", b"b"))


@pytest.mark.parametrize("first", [b"1", b"x", b""])
@pytest.mark.parametrize("other", [b"Content-Length: 1", b"Content-Length: x", b"Content-Length:"])
def test_a_second_length_is_refused_wherever_it_stands(first, other):
    for between in (b"", b"A: b\r\n"):
        head = START + b"Content-Length: %b\r\n%b%b\r\n\r\n" % (first, between, other)
        for _ in range(2):
            with pytest.raises(BadRequest):
                read([head])


def test_expect_continue_is_told_from_other_expectations():
    assert read([START + b"Expect: 100-Continue\r\n\r\n"])[0].expects_continue
    assert not read([START + b"\r\n"])[0].expects_continue
    assert not read([b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"])[0].expects_continue


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_head_beyond_its_limits_is_refused(step):
    long = START + b"A: " + b"b" * 400
    many = START + b"".join(b"A%d: b\r\n" % i for i in range(20)) + b"\r\n"
    url = b"GET /" + b"u" * 400
    for data in (long, many, url):
        with pytest.raises(BadRequest) as refused:
            read([data[i : i + step] for i in range(0, len(data), step)], 300, 10)
        assert refused.value.status == 431
    assert read([START + b"A: b\r\n" * 9 + b"\r\n"], 300, 10) is not None


CHUNKS = {
    "one": (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "two": (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
    "none": (b"0\r\n\r\n", b""),
    "upper case": (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "zeros": (b"0003\r\nabc\r\n000\r\n\r\n", b"abc"),
    "extension": (b'3;a="b;c"\r\nabc\r\n0;x\r\n\r\n', b"abc"),
    "trailers": (b"3\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"abc"),
    "blank lines inside": (b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n\r\n\r\n"),
    "a body like an end": (b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", b"0\r\n\r\n"),
}


def chunks_of(parts):
    reader = ChunkedReader()
    body = b""
    for i, part in enumerate(parts):
        more, rest = reader.feed(part)
        body += more
        if reader.done:
            return body, rest + b"".join(parts[i + 1 :])
        assert rest == b""
    return None


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("follows", [b"", b"\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\xff\0"])
def test_chunks_are_the_same_however_split_and_end_to_the_byte(name, follows):
    data, expected = CHUNKS[name]
    splits = [[cut] for cut in range(len(data) + 1)] + [range(len(data) + len(follows))]
    for cuts in splits:
        assert chunks_of(pieces(data + follows, cuts)) == (expected, follows)
    for length in range(len(data)):
        assert chunks_of([data[:length]]) is None


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 400)))
def test_any_body_survives_chunking_and_splitting(parts, cuts):
    data = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    assert chunks_of(pieces(data + b"next", cuts)) == (b"".join(parts), b"next")


BAD_CHUNKS = {
    "LF": b"3\nabc\r\n0\r\n\r\n",
    "CR alone": b"3\rabc\r\n0\r\n\r\n",
    "LF after data": b"3\r\nabc\n0\r\n\r\n",
    "nothing after data": b"3\r\nabc0\r\n\r\n",
    "data beyond the size": b"3\r\nabcd\r\n0\r\n\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "negative": b"-3\r\nabc\r\n0\r\n\r\n",
    "space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "space after": b"3 \r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "no number": b"x\r\nabc\r\n0\r\n\r\n",
    "endless size": b"FFFFFFFFFFFFFFFFFFFFFF\r\nabc",
    "LF in an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "control in an extension": b"3;\x01\r\nabc\r\n0\r\n\r\n",
    "LF at the end": b"0\r\n\n",
    "length in trailers": b"0\r\nContent-Length: 5\r\n\r\n",
    "coding in trailers": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "bare CR in a trailer": b"0\r\nA: b\rc\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_malformed_chunks_are_refused_however_split(name):
    data = BAD_CHUNKS[name]
    for cuts in [[cut] for cut in range(len(data))] + [range(len(data))]:
        with pytest.raises(BadRequest):
            chunks_of(pieces(data, cuts))


@pytest.mark.parametrize(
    "flood",
    [b"1;" + b"x" * 4096 + b"\r\na\r\n", b"0\r\nA: " + b"x" * 200_000, b"1;" + b"y" * 200_000],
)
def test_framing_that_dwarfs_the_data_is_refused(flood):
    with pytest.raises(BadRequest):
        chunks_of([flood] * 100)


def test_tiny_chunks_are_no_flood():
    body, _ = chunks_of([b"1\r\na\r\n" * 50_000, b"0\r\n\r\n"])
    assert len(body) == 50_000


def test_fields_of_the_connection_are_named_for_removal():
    names = hop_by_hop([(b"connection", b"close, X-Secret"), (b"accept", b"*/*")])
    assert {b"connection", b"x-secret", b"te", b"transfer-encoding", b"upgrade"} <= names
    assert b"accept" not in names


def test_a_head_is_written_without_the_fields_that_frame_the_message():
    headers = [(b"a", b"b"), (b"content-length", b"9"), (b"transfer-encoding", b"x")]
    assert lines([*headers, (b"connection", b"close"), (b"e", b"f")]) == b"a: b\r\ne: f\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"


@pytest.mark.parametrize(
    "field", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\r"), (b"a", b"\0")]
)
def test_a_field_that_would_split_the_head_is_not_written(field):
    with pytest.raises(ValueError, match="line break"):
        lines([field])
