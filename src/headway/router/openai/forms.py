"""Watches forms, as audio has them, which pass as they come: nobody's limits can be read there."""

import re
from typing import Final

from headway.router.wire.errors import BodyError

_CHARSET: Final = re.compile(rb'charset\s*=\s*"?([^";\s]*)')
_PLAIN: Final = (b"utf-8", b"utf8")
_ARGUMENTS: Final = (b"vllm_xargs", b"name*")
"""What the field's name needs, which comes first: `name*` may spell it otherwise."""
_LIMITS: Final = (b"headway_", b"\\u00")
"""What a limit's name needs, escaped or not."""
_LONGEST: Final = max(map(len, _ARGUMENTS + _LIMITS))


class FormWatch:
    """Looks at a form's bytes, in order, and keeps none but the last few."""

    def __init__(self, content_type: bytes) -> None:
        """content_type: in lower case. Raises BodyError for a form's charset in which names may
        look otherwise.
        """
        charsets = _CHARSET.findall(content_type) if b"form" in content_type else []
        if any(charset not in _PLAIN for charset in charsets):
            raise BodyError(400, "A form must be UTF-8.", code="invalid_form")
        self._end = b""
        self._named = False

    def look(self, part: bytes) -> None:
        """Raises BodyError once there may be a limit in `vllm_xargs`."""
        data = self._end + part
        self._named = self._named or any(mark in data for mark in _ARGUMENTS)
        if self._named and any(mark in data for mark in _LIMITS):
            message = "Limits can't be asked for in a form; leave them out of `vllm_xargs`."
            raise BodyError(400, message, "vllm_xargs", "invalid_form")
        self._end = data[1 - _LONGEST :]
