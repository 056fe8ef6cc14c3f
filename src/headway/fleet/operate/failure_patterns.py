"""What makes engines fail to start, by the words of vLLM 0.32, huggingface_hub 2.4, torch, Triton,
NCCL, compilers and the kernel.

Of an error and what it came of, the first row that fits either counts: rows that say more come
first.
"""

import re
from typing import Final, NamedTuple


class Known(NamedTuple):
    """pattern: of an error. told: what was wrong and what would be right; a format string with
    the pattern's groups. lasting: another start would end the same way.
    """

    pattern: re.Pattern[str]
    told: str
    lasting: bool


def _when(pattern: str, told: str) -> Known:
    """Another start may go better: what it needs may be free, or reachable, by then."""
    return Known(re.compile(pattern, re.DOTALL), told, lasting=False)


def _always(pattern: str, told: str) -> Known:
    """Only a person can change that."""
    return Known(re.compile(pattern, re.DOTALL), told, lasting=True)


_SHARED: Final = "another process uses it, or engines share it: give each its own devices"
_TOKEN: Final = "set HF_TOKEN in [pool.env]"  # noqa: S105 -- says where it belongs
_NO_MODEL: Final = (
    "no model at {model}; model is a directory with config.json, or a name on a hub that can be "
    "reached from here"
)
_UNUSABLE: Final = (
    "{path} can't be used by this user; give it the permission or, where it is a cache, set "
    "HF_HOME (what is fetched) or XDG_CACHE_HOME (all caches) in [pool.env] to a directory of its "
    "own"
)

_OF_MODELS: Final = (
    _when(
        r"429 Too Many Requests.*?Retry after (?P<s>\d+) seconds",
        f"the hub takes no more requests for {{s}} s (429); wait, or {_TOKEN}: whoever is known "
        "there may ask more often",
    ),
    _when(
        r"429 Too Many Requests",
        f"the hub takes no more requests for now (429); wait, or {_TOKEN}: whoever is known there "
        "may ask more often",
    ),
    _always(
        r"Access to model (?P<model>\S+) is restricted and you are not in the authorized list",
        "the owner of HF_TOKEN hasn't accepted the licence of {model} or isn't admitted yet; ask "
        "for access on the model's page on its hub",
    ),
    _always(
        r"Access to model (?P<model>\S+) is restricted",
        "{model} asks for its licence to be accepted: do so on its page on the hub, and "
        f"{_TOKEN}",
    ),
    _always(
        r"GatedRepo|gated repo\b",
        "the model asks for its licence to be accepted: do so on its page on the hub, and "
        f"{_TOKEN}",
    ),
    _always(
        r"(?P<model>\S+) is not a local folder and is not a valid model identifier",
        "the hub has no model {model}, or it is private; check the name, or for a private one "
        f"{_TOKEN}",
    ),
    _always(
        r"Repository Not Found for url: (?P<url>\S+?)\.?(?:\s|$)",
        f"the hub has no such model ({{url}}), or it is private; check the name, or for a private "
        f"one {_TOKEN}",
    ),
    _always(
        r"RevisionNotFoundError|is not a valid git identifier",
        "the model has no such revision; correct --revision in flags",
    ),
    _always(
        r"401 Unauthorized|Invalid credentials in Authorization header|Invalid user token",
        "the hub doesn't know the token; correct HF_TOKEN in [pool.env] or the environment (hf "
        "auth whoami tells whose it is), or unset it",
    ),
    _always(
        r"403 Forbidden: (?P<said>.*?)\.?\.? Cannot access content",
        "the hub refuses the token of HF_TOKEN: {said}",
    ),
    _always(
        r"outgoing traffic has been disabled|OfflineModeIsEnabled",
        "the model isn't in the hub's cache, and HF_HUB_OFFLINE lets nothing be fetched; fetch it "
        "first (hf download NAME), or unset it",
    ),
    _always(
        r"CERTIFICATE_VERIFY_FAILED",
        "the hub's certificate isn't trusted here, as behind a proxy with one of its own; set "
        "SSL_CERT_FILE in [pool.env] to the certificate of who signed it",
    ),
    _when(
        r"Server error '(?P<status>5\d\d [^']*)' for url",
        "the hub has trouble of its own ({status}); try later, or set model to a directory",
    ),
    _when(
        r"We couldn't connect to '(?P<hub>[^']*)'",
        "the hub {hub} can't be reached from here, and its cache hasn't got the model; check "
        "network and proxy (HTTPS_PROXY), or set model to a directory",
    ),
    _when(
        r"LocalEntryNotFoundError",
        "the hub can't be reached from here, and its cache hasn't got all of the model; check "
        "network and proxy (HTTPS_PROXY), or set model to a directory",
    ),
    _always(r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'", _NO_MODEL),
    _always(r"(?P<model>\S+) is not a local folder or", _NO_MODEL),
    _always(r"Repo id must [^']*'[^']*'(?: or '[^']*')?[^']*: '(?P<model>[^']*)'", _NO_MODEL),
    _always(
        r"Cannot find any model weights with `(?P<model>[^`]*)`",
        "{model} has no weights in a form that vLLM reads (*.safetensors, *.bin)",
    ),
    _always(
        r"SafetensorError.*deserializing header|PytorchStreamReader failed",
        "a file of the model's weights isn't complete (headway doctor tells which, of a "
        "directory); fetch it again, from a hub with hf download --force-download NAME",
    ),
    _when(
        r"Consistency check failed",
        "what was fetched of the model isn't what the hub has; it will be fetched again",
    ),
)

KNOWN: Final = (
    *_OF_MODELS,
    _always(
        r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed.*"
        r"available KV cache memory \((?P<there>[\d.]+) GiB\)"
        r".*estimated maximum model length is (?P<fits>\d+)",
        "max_model_len {length} needs {needed} GiB of KV cache and there are {there}; raise "
        "kv_memory_gib, or set max_model_len to at most {fits}",
    ),
    _always(
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
    _always(
        r"(?:/dev/shm|shared memory|unable to (?:write to|open) file).*No space left on device"
        r"|No space left on device.*/dev/shm|insufficient shared memory|Bus error",
        "the shared memory, /dev/shm, is too small for what an engine's processes exchange there; "
        "in a container --shm-size=8g (or --ipc=host), in Kubernetes an emptyDir in memory",
    ),
    _when(
        r"NCCL error.*?unhandled system error",
        "NCCL, which moves tensors between GPUs, failed, mostly as /dev/shm is too small (in a "
        'container --shm-size=8g); NCCL_DEBUG = "INFO" in [pool.env] makes its log tell',
    ),
    _always(
        r"No space left on device.*'(?P<path>/[^']*)'",
        "the disk of {path} is full; make room there, or for what is fetched set HF_HOME in "
        "[pool.env] to a directory on another",
    ),
    _always(
        r"No space left on device|Not enough free disk space",
        "a disk is full (df -h); make room, or for what is fetched set HF_HOME in [pool.env] to "
        "a directory on another",
    ),
    _always(
        r"(?:PermissionError at (?P<path>\S+) when downloading)",
        _UNUSABLE,
    ),
    _always(
        r"(?:Permission denied|Read-only file system)[^']*: '(?P<path>[^']*)'",
        _UNUSABLE,
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
    _always(
        r"unrecognized arguments: (?P<flags>.+)",
        "vLLM doesn't know {flags}; correct flags of its [[pool]] "
        "(all of vLLM's: python -m vllm.entrypoints.openai.api_server --help=all)",
    ),
    _always(r"^(?P<said>argument -\S+: .+)", "{said}"),
    _always(
        r"User-specified max_model_len \((?P<length>\d+)\) is greater than the derived "
        r"max_model_len \(\w+=(?P<most>\d+)",
        "max_model_len is {length} and the model's own limit {most}; use at most that",
    ),
    _always(
        r"No working C\+\+ compiler|InvalidCxxCompiler",
        "there is no C++ compiler to compile the model with; install g++, or put "
        '"--enforce-eager" into flags',
    ),
    _always(
        r"Python\.h: No such file",
        "Python's headers, with which kernels are compiled, aren't installed; install python3-dev "
        "(of this Python's version)",
    ),
    _always(
        r"libcuda\.so\S* ?cannot|libcuda\.so\S*: cannot open|cannot find -lcuda\b"
        r"|Found no NVIDIA driver",
        "the NVIDIA driver's libcuda isn't found; install the driver, in a container with the "
        "NVIDIA Container Toolkit and --gpus all",
    ),
    _always(
        r"(?P<library>libcudart\.so\S*): cannot open",
        "vLLM or torch is built for another CUDA than is installed ({library} is missing); install "
        "both for the same, in an environment of their own",
    ),
    _always(
        r"NIXL is not available",
        "NIXL, which moves KV between engines, isn't installed; pip install nixl",
    ),
    _always(
        r"Too many open files",
        "the limit of open files is too low; raise it (ulimit -n 65536)",
    ),
    _always(
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device",
        "there is no such GPU; correct devices (nvidia-smi -L lists what is there)",
    ),
    _always(
        r"NVIDIA driver on your system is too old",
        "the NVIDIA driver is too old for this vLLM's CUDA; update it",
    ),
    _always(
        r"Bfloat16 is only supported",
        'the GPU has no bfloat16; put "--dtype=half" into flags',
    ),
    _always(
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
        r"\((?P<size>\d+)\)",
        "tensor_parallel_size {size} doesn't divide the model's {heads} attention heads; "
        "choose a divisor",
    ),
    _always(
        r"requires you to execute the .*trust_remote_code",
        'the model brings code of its own; put "--trust-remote-code" into flags if you trust it',
    ),
)
