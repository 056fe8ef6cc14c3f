"""Web pages that may use the router (CORS), with the meaning of vLLM's `--allowed-origins`."""

from headway.router.wire.client_request import VARIES, ClientRequest
from headway.router.wire.http1 import METHODS

_PREFLIGHT = b"access-control-request-method"
_MAX_AGE_S = 600


def admit(request: ClientRequest, allowed: tuple[str, ...]) -> bool:
    """Have every answer to this request say whether a page may read it; whether it goes on.

    A preflight is answered here: it carries no key. allowed: origins, or "*".
    """
    fields = dict(request.headers)
    origin = fields.get(b"origin")
    everybody = "*" in allowed
    if not everybody:  # also for who is no page: a cache may give a page that answer
        request.cross_origin = VARIES + b"\r\n"
    if origin is None:
        return True
    granted = everybody or origin.decode("latin-1") in allowed
    if granted:
        named = b"*" if everybody else origin
        request.cross_origin += b"access-control-allow-origin: %b\r\n" % named
    if request.method != "OPTIONS" or _PREFLIGHT not in fields:
        return True
    wanted = fields.get(b"access-control-request-headers", b"")
    answer = [
        (b"access-control-allow-methods", b", ".join(sorted(METHODS))),
        (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        *([(b"access-control-allow-headers", wanted)] if wanted else []),
    ]
    said = b"OK" if granted else b"Disallowed CORS origin"
    plain = (b"content-type", b"text/plain; charset=utf-8")
    # What it may do stands in fields of this answer's own, which `cross_origin` would replace.
    request.cross_origin += b"".join(b"%b: %b\r\n" % field for field in answer) if granted else b""
    request.respond(200 if granted else 400, [plain], said)
    return False
