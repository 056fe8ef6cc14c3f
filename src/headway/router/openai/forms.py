"""Watches forms, as audio has them, which pass as they come: nobody's limits can be read there."""

import re
from typing import Final

from headway.router.wire.errors import BodyError

_PLAIN: Final = re.compile(rb'charset\s*=\s*"?utf-?8"?\s*(?:;|$)')
_ARGUMENTS: Final = (b"vllm_xargs", b"name*")
"""What the field's name needs, which comes first: `name*` may spell it otherwise."""
_LIMITS: Final = (b"headway_", b"\\u00")
"""What a limit's name needs, escaped or not."""
_LONGEST: Final = max(map(len, _ARGUMENTS + _LIMITS))


class FormWatch:
    """Looks at a form's bytes, in order, and keeps none but the last few."""

    def __init__(self, content_type: bytes) -> None:
        """Raises BodyError for a charset in which names may look otherwise."""
        if b"charset" in content_type and not _PLAIN.search(content_type):
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
