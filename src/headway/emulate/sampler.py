"""The tokens of a step, as vLLM takes them from a model runner."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import numpy as np
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

from headway.emulate.answers import words
from headway.emulate.batch import Batch
from headway.emulate.grammar import Grammar

_ODDS: Final = 0.5
"""Made up: the share of the likeliest token; each of the next has half of the one before."""


class Sampler:
    """Writes answers in the words of a model's tokenizer."""

    def __init__(self, model_config: Any) -> None:
        """model_config: vLLM's. Without a tokenizer any id may be written."""
        self._size = size = model_config.get_vocab_size()
        tokenizer: Any = cached_tokenizer_from_config(model_config)
        self._vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer else {}
        special = tokenizer.all_special_ids if tokenizer else ()
        self._words = words(self._vocabulary, size, special)

    @cached_property
    def _grammar(self) -> Grammar:
        """Made when the first answer has to follow one."""
        return Grammar(self._words, self._vocabulary, self._size)

    def output(self, batch: Batch, grammar_output: Any) -> ModelRunnerOutput:
        """What comes of a step. grammar_output: vLLM's masks for answers that follow a grammar."""
        masks = _masks(grammar_output)
        sampled = list(self._sampled(batch, masks))
        return ModelRunnerOutput(
            req_ids=batch.ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(batch.ids)},
            sampled_token_ids=sampled,
            logprobs=self._logprobs(batch, sampled),
        )

    def _sampled(self, batch: Batch, masks: dict[str, Any]) -> Iterable[list[int]]:
        words = self._words
        for request_id, position, how in zip(
            batch.ids, batch.positions, batch.writings, strict=True
        ):
            if position is None:
                yield []
            elif request_id in masks:
                yield [self._grammar.token(how, position, masks[request_id])]
            else:
                yield [how.token(position, words)]

    def _logprobs(self, batch: Batch, sampled: list[list[int]]) -> LogprobsLists | None:
        """Made up: the token that was chosen is the likeliest, others are words."""
        asked = [how.logprobs for how in batch.writings if how.logprobs is not None]
        if not asked:
            return None
        others = max(self._size if count < 0 else count for count in asked)
        tokens: Any = np.zeros((len(sampled), 1 + others), dtype=np.int32)
        words = np.asarray(self._words, dtype=np.int32)
        for row, chosen in enumerate(sampled):
            if chosen:
                tokens[row, 0] = chosen[0]
                tokens[row, 1:] = words[(chosen[0] + np.arange(others)) % len(words)]
        odds = np.log(_ODDS) * np.maximum(1, np.arange(1 + others))
        values = np.broadcast_to(odds.astype(np.float32), tokens.shape)
        return LogprobsLists(tokens, values, np.ones(len(sampled), dtype=np.int32))


def _masks(grammar_output: Any) -> dict[str, Any]:
    """Each request's bits of allowed tokens."""
    if grammar_output is None:
        return {}
    ids = grammar_output.structured_output_request_ids
    return dict(zip(ids, grammar_output.grammar_bitmask, strict=False))
