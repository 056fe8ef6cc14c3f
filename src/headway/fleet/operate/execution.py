"""How an engine runs its model, from vLLM's own configuration as it writes it to its log.

A decode engine without CUDA graphs is slower than a unified one with them, token for token.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 256 * 1024
"""Of a log: vLLM tells its configuration before it loads a model."""
_CONFIG: Final = re.compile(
    r"Initializing a V1 LLM engine.*?device_config=(?P<device>\w+).*?"
    r"'mode': <CompilationMode\.(?P<mode>\w+).*?'cudagraph_mode': <CUDAGraphMode\.(?P<graphs>\w+)"
)
_LARGEST: Final = re.compile(r"'max_cudagraph_capture_size': (?P<size>\d+)")
_SEQUENCES: Final = re.compile(r"non-default args: .*'max_num_seqs': (?P<count>\d+)")


@dataclass(frozen=True, slots=True)
class Execution:
    """device: `cpu`, `cuda`, …. compiled: by torch.compile. graphs: vLLM's name of the CUDA graph
    mode, "" without. largest_batch: that has a graph. max_num_seqs: the engine's, where it was set.
    """

    device: str
    compiled: bool
    graphs: str = ""
    largest_batch: int = 0
    max_num_seqs: int | None = None

    def __str__(self) -> str:
        if self.graphs:
            return f"graphs to {self.largest_batch}"
        return "compiled" if self.compiled else "eager"


def of(path: Path) -> Execution | None:
    """Of the engine that writes the log at `path`; None where it hasn't said yet."""
    try:
        with path.open("rb") as file:
            return parse(file.read(_HEAD_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None


def parse(log: str) -> Execution | None:
    """Of the engine that wrote `log`; None where it hasn't said yet."""
    found = _CONFIG.search(log)
    if not found:
        return None
    line_end = log.find("\n", found.end())
    largest = _LARGEST.search(log, found.start(), line_end if line_end >= 0 else len(log))
    sequences = _SEQUENCES.search(log)
    return Execution(
        device=found["device"],
        compiled=found["mode"] != "NONE",
        graphs="" if found["graphs"] == "NONE" else found["graphs"],
        largest_batch=int(largest["size"]) if largest else 0,
        max_num_seqs=int(sequences["count"]) if sequences else None,
    )


def slow_decode(execution: Execution) -> str | None:
    """Why an engine that decodes would do so slower than it could, and what to do; None if not."""
    gpu = execution.device != "cpu"
    if gpu and not execution.graphs:
        return 'decodes without CUDA graphs; take "--enforce-eager" and the like out of flags'
    most = execution.max_num_seqs
    if gpu and most and most > execution.largest_batch:
        return (
            f"batches over {execution.largest_batch} have no CUDA graph and max_num_seqs is {most};"
            f' put "--max-cudagraph-capture-size={most}" into flags'
        )
    if not gpu and not execution.compiled:
        return (
            "isn't compiled: up sooner, and decodes about a quarter slower; "
            'flags = ["--no-enforce-eager"] compiles'
        )
    return None
