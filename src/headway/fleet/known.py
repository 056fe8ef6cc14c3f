"""What makes engines fail to start, by the words of vLLM 0.32, torch, and the kernel."""

import re
from typing import Final, NamedTuple


class Known(NamedTuple):
    """pattern: of an error. told: what was wrong and what would be right; a format string with
    the pattern's groups.
    """

    pattern: re.Pattern[str]
    told: str


def _when(pattern: str, told: str) -> Known:
    return Known(re.compile(pattern, re.DOTALL), told)


_SHARED: Final = "another process uses it, or engines share it: give each its own devices"

KNOWN: Final = (
    _when(
        r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed.*"
        r"available KV cache memory \((?P<there>[\d.]+) GiB\)"
        r".*estimated maximum model length is (?P<fits>\d+)",
        "max_model_len {length} needs {needed} GiB of KV cache and there are {there}; raise "
        "kv_memory_gib, or set max_model_len to at most {fits}",
    ),
    _when(
        r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed.*"
        r"available KV cache memory \((?P<there>[\d.]+) GiB\)",
        "max_model_len {length} needs {needed} GiB of KV cache and there are {there}; raise "
        "kv_memory_gib, or lower max_model_len",
    ),
    _when(
        r"No available memory for the cache blocks",
        "the model leaves no memory for the KV cache; use more devices "
        "(tensor_parallel_size), a smaller model, or a higher --gpu-memory-utilization in "
        "flags",
    ),
    _when(
        r"Free memory on device \D*(?P<device>\d*) ?\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) "
        r"on startup is less than .*?, (?P<wanted>[\d.]+) GiB\)",
        "GPU {device} has {free} of {all} GiB free and the engine wants {wanted}; "
        f"{_SHARED}, or lower --gpu-memory-utilization in flags",
    ),
    _when(
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/.*requested memory for kv "
        r"\((?P<wanted>[\d.]+)",
        "the KV cache should have {wanted} GiB and {free} are free on memory node {node}; "
        "lower kv_memory_gib, or end what uses the memory",
    ),
    _when(
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/.*desired CPU memory "
        r"utilization \([\d.]+, (?P<wanted>[\d.]+) GiB\)",
        "the engine wants {wanted} GiB and {free} are free on memory node {node}; set "
        "kv_memory_gib, or lower --gpu-memory-utilization in flags",
    ),
    _when(
        r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \wiB)\. GPU (?P<gpu>\d+)"
        r".*?of which (?P<free>[\d.]+ \wiB) is free",
        "GPU memory ran out ({wanted} more needed, {free} free); lower max_model_len or "
        "kv_memory_gib, or use more devices (tensor_parallel_size)",
    ),
    _when(
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory",
        "GPU memory ran out; lower max_model_len or kv_memory_gib, or use more devices "
        "(tensor_parallel_size)",
    ),
    _when(
        r"(?:can't allocate memory|Cannot allocate memory|^MemoryError|std::bad_alloc)",
        "memory ran out; lower kv_memory_gib, or start fewer engines",
    ),
    _when(
        r"No space left on device|Bus error",
        "a disk or the shared memory is full; make room (df -h, df -h /dev/shm; in a "
        "container --shm-size=8g)",
    ),
    _when(
        r"address \('(?P<host>[^']*)', (?P<port>\d+)\): address already in use",
        "{host}:{port} is taken by another process; end that, or start again: another is chosen",
    ),
    _when(
        r"Address already in use \(addr='(?P<where>[^']*)'",
        "{where} is taken by another process; end that, or start again: another is chosen",
    ),
    _when(
        r"Address already in use",
        "a port is taken by another process; end that, or start again: another is chosen",
    ),
    _when(
        r"unrecognized arguments: (?P<flags>.+)",
        "vLLM doesn't know {flags}; correct flags of its [[pool]] "
        "(all of vLLM's: python -m vllm.entrypoints.openai.api_server --help=all)",
    ),
    _when(
        r"User-specified max_model_len \((?P<length>\d+)\) is greater than the derived "
        r"max_model_len \(\w+=(?P<most>\d+)",
        "max_model_len is {length} and the model's own limit {most}; use at most that",
    ),
    _when(
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "no model at {model}; model is a directory with config.json, or a name on a hub "
        "that can be reached from here",
    ),
    _when(
        r"(?P<model>\S+) is not a local folder (?:and|or)",
        "no model at {model}; model is a directory with config.json, or a name on a hub "
        "that can be reached from here",
    ),
    _when(
        r"GatedRepo|gated repo|401 Client Error",
        "the model asks for a licence to be accepted on its hub; do so and set HF_TOKEN in "
        "[pool.env]",
    ),
    _when(
        r"No working C\+\+ compiler|InvalidCxxCompiler",
        "there is no C++ compiler to compile the model with; install g++, or put "
        '"--enforce-eager" into flags',
    ),
    _when(
        r"NIXL is not available",
        "NIXL, which moves KV between engines, isn't installed; pip install nixl",
    ),
    _when(
        r"Too many open files",
        "the limit of open files is too low; raise it (ulimit -n 65536)",
    ),
    _when(
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device",
        "there is no such GPU; correct devices (nvidia-smi -L lists what is there)",
    ),
    _when(
        r"NVIDIA driver on your system is too old",
        "the NVIDIA driver is too old for this vLLM's CUDA; update it",
    ),
    _when(
        r"Bfloat16 is only supported",
        'the GPU has no bfloat16; put "--dtype=half" into flags',
    ),
    _when(
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
        r"\((?P<size>\d+)\)",
        "tensor_parallel_size {size} doesn't divide the model's {heads} attention heads; "
        "choose a divisor",
    ),
    _when(
        r"requires you to execute the .*trust_remote_code",
        'the model brings code of its own; put "--trust-remote-code" into flags if you trust it',
    ),
)
