"""Counts prompts with the model's own tokenizer, in a thread beside the event loop."""

import asyncio
import importlib.util
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from headway.core.errors import SettingError
from headway.router.openai.prompt import TOKEN_BYTES
from headway.router.openai.request import Parsed

SETTING: Final = "router.tokenizer"
SAMPLE_BYTES: Final = 1 << 18
"""What of a longer prompt is counted; the rest is taken to be like it."""
WAITING: Final = 32
"""Prompts that may wait for the thread; one more is taken to be like the one counted last."""


class TokenCounter:
    """Measures prompts in tokens of one `tokenizer.json`.

    What a chat template adds isn't counted; it is learned from the engines' answers, as is the
    length of prompts where nothing counts.
    """

    def __init__(self, file: pathlib.Path) -> None:
        """Raises SettingError if the file can't be read as a tokenizer."""
        self._tokenizer = _read(file)
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self._waiting = 0
        self._tokens_per_byte = 1 / TOKEN_BYTES

    async def measured(self, parsed: Parsed) -> Parsed:
        """With `prompt_bytes` as TOKEN_BYTES for each token of the prompt.

        Prompts of token ids have been counted by whoever sent them.
        """
        if parsed.prompt_token_ids is not None or not parsed.prefix:
            return parsed
        if self._waiting < WAITING:
            loop = asyncio.get_running_loop()
            self._waiting += 1
            try:
                count = loop.run_in_executor(self._thread, self._count, parsed.prefix)
                self._tokens_per_byte = await count
            finally:
                self._waiting -= 1
        size = round(parsed.prompt_bytes * self._tokens_per_byte * TOKEN_BYTES)
        return parsed._replace(prompt_bytes=size)

    def close(self) -> None:
        """Let the thread end, once it has counted what waits."""
        self._thread.shutdown(wait=False)

    def _count(self, prompt: bytes) -> float:
        """Tokens per byte of it."""
        sample = prompt[:SAMPLE_BYTES]
        # Unlike `encode`, it lets other threads run meanwhile.
        (found,) = self._tokenizer.encode_batch_fast([sample.decode(errors="ignore")])
        return len(found.ids) / len(sample)


def _read(file: pathlib.Path) -> Any:
    if importlib.util.find_spec("tokenizers") is None:
        raise SettingError(SETTING, "needs the package tokenizers; pip install tokenizers")
    import tokenizers  # noqa: PLC0415  only now is it known to be there

    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  it raises bare Exception
        message = f"is {file}, which isn't a tokenizer.json: {error}; use a model's own"
        raise SettingError(SETTING, message) from None
