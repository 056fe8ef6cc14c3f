"""Which prompt prefixes an engine has probably cached.

A prompt is cut into blocks of bytes, and each block is named by a hash of the prompt up
to its end. Prompts share names exactly as far as they share whole blocks. Per engine the
names of what was sent there are kept, the least recently sent forgotten first. It is a
guess about the engine's own cache: a wrong one costs time, never correctness.
"""

from collections import OrderedDict
from hashlib import blake2b
from itertools import pairwise
from typing import Final

BLOCK_BYTES: Final = 1_024
"""About 256 tokens; a shorter shared prefix isn't worth an engine's load."""
BYTES_PER_TOKEN: Final = 4
MAX_BLOCKS: Final = 8_192
"""For each engine; with `BLOCK_BYTES`, about two million tokens."""
NAME_BYTES: Final = 8


class PrefixMap:
    """Names of prefixes by engine; `add` what is sent, then `match` what arrives.

    block_bytes: prefixes are compared in blocks of this size.
    max_blocks: the most names kept for an engine.

    Raises ValueError if either is below 1.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES, max_blocks: int = MAX_BLOCKS) -> None:
        if block_bytes < 1 or max_blocks < 1:
            sizes = f"{block_bytes} and {max_blocks}"
            raise ValueError(f"block_bytes and max_blocks must be 1 or more, not {sizes}")
        self.block_bytes = block_bytes
        self.max_blocks = max_blocks
        # In order of last use, oldest first. A use of a block is a later use of every block
        # before it (see `add`), so what is forgotten is always the end of a prefix, and the
        # known blocks of a chain are its first ones.
        self._names: dict[str, OrderedDict[int, None]] = {}

    def chain(self, prompt: bytes) -> tuple[int, ...]:
        """A name for each whole block's prefix, shortest first; one pass over the bytes.

        Blocks beyond `max_blocks` have none.
        """
        whole = min(len(prompt) // self.block_bytes, self.max_blocks)
        if not whole:
            return ()
        view = memoryview(prompt)
        ends = range(0, (whole + 1) * self.block_bytes, self.block_bytes)
        running = blake2b(digest_size=NAME_BYTES)
        names = []
        for start, end in pairwise(ends):
            running.update(view[start:end])
            names.append(int.from_bytes(running.digest()))
        return tuple(names)

    def match(self, chain: tuple[int, ...], engine: str) -> int:
        """How many of the chain's first blocks the engine was sent; O(log(blocks))."""
        names = self._names.get(engine)
        if not names:
            return 0
        known, unknown = 0, len(chain) + 1
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if chain[middle - 1] in names:
                known = middle
            else:
                unknown = middle
        return known

    def add(self, chain: tuple[int, ...], engine: str) -> None:
        """The engine was sent a prompt of this chain."""
        names = self._names.setdefault(engine, OrderedDict())
        for name in reversed(chain[: self.max_blocks]):
            names[name] = None
            names.move_to_end(name)
        while len(names) > self.max_blocks:
            names.popitem(last=False)

    def forget(self, engine: str) -> None:
        """The engine restarted or is gone: it has nothing."""
        self._names.pop(engine, None)

    def kept_tokens(self, engine: str) -> int:
        """About how many tokens the engine has been sent and may still have."""
        names = self._names.get(engine)
        return len(names) * self.block_bytes // BYTES_PER_TOKEN if names else 0

    def cached_tokens(self, blocks: int, prefix_bytes: int, prompt_tokens: int) -> int:
        """Tokens in the first `blocks` of a prompt of `prefix_bytes` bytes and so many tokens."""
        if prefix_bytes <= 0:
            return 0
        return min(prompt_tokens, blocks * self.block_bytes * prompt_tokens // prefix_bytes)
