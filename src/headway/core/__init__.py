"""Pure decisions: no clock, randomness, I/O, logging, asyncio or vLLM."""
