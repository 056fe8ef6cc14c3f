"""Requests as clients write them."""

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
BIG = 4 << 20


def post(body, *more):
    fields = b"".join(field + b"\r\n" for field in more)
    return b"POST /x HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (
        fields,
        len(body),
        body,
    )


def held_back(server):
    """Whether the server has stopped reading from one of its clients."""
    return any(not connection._reading for connection in server._hub.connections)


async def echo(request):
    body = await request.body(BIG)
    query = b"?" + request.query if request.query else b""
    request.respond(200, [], request.path.encode() + query + b"|" + body)
