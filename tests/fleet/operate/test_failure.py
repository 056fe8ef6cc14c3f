"""The cause of an engine's end, from logs as vLLM 0.32 writes them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.fleet.operate import failure, failure_patterns

CORE = "(EngineCore pid=5645) "
API = "(APIServer pid=5622) "
WORKER = "(Worker pid=5681) "
HARMLESS = """\
(APIServer pid=1) WARNING 11-29 22:54:36 [system_utils.py:255] Found ulimit of 20000 and failed \
to automatically increase with error current limit exceeds maximum limit. This can cause fd limit \
errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n
(APIServer pid=1) INFO 11-29 22:54:36 [nixl_utils.py:72] NIXL is available
"""
ENDING = """\
nanobind: leaked 4 instances!
 - leaked instance 0x7f2c1893cde8 of type "triton._C.libtriton.ir.attribute"
"""


def logged(process, line, error):
    """A traceback as `logger.exception` writes it."""
    mark = f"{process}ERROR 11-29 22:54:48 [{line}] "
    lines = ["EngineCore failed to start.", *frames(error)]
    return "".join(f"{mark}{text}\n" for text in lines)


def frames(error):
    return [
        "Traceback (most recent call last):",
        '  File "/x/vllm/v1/engine/core.py", line 1490, in run_engine_core',
        "    engine_core = EngineCoreProc(*args, **kwargs)",
        "                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        *error.split("\n"),
    ]


def printed(process, error):
    """A traceback as the interpreter prints it."""
    return "".join(f"{process}{text}\n" for text in ["Process EngineCore:", *frames(error)])


def failed_start(error):
    """All that vLLM says when a worker fails: the cause, then two processes telling of it."""
    worker = "Exception: WorkerProc initialization failed due to an exception in a background"
    core = "RuntimeError: Engine core initialization failed. See root cause above. Failed core"
    return (
        HARMLESS
        + logged(WORKER, "multiproc_executor.py:900", error)
        + logged(CORE, "core.py:1510", worker)
        + printed(CORE, worker)
        + printed(API, core)
        + ENDING
    )


CASES = [
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
            "has a total "
            "capacity of 79.15 GiB of which 1.21 GiB is free. Process 1 has 2 GiB memory in use."
        ),
        "GPU memory ran out (2.00 GiB more needed, 1.21 GiB free); lower max_model_len",
    ),
    (
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
            "requests. Please try lowering `max_num_seqs`"
        ),
        "GPU memory ran out; lower max_model_len or kv_memory_gib",
    ),
    (
        (
            "ValueError: To serve at least one request with the model's max seq len "
            "(131072), (16.0 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (4.5 GiB). "
            "Based on the available memory, the estimated maximum model length is 36864. Try"
        ),
        (
            "max_model_len 131072 needs 16.0 GiB of KV cache and there are 4.5; raise "
            "kv_memory_gib, "
            "or set max_model_len to at most 36864"
        ),
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing",
        "the model leaves no memory for the KV cache; use more devices",
    ),
    (
        (
            "ValueError: Free memory on device cuda:1 (3.2/79.15 GiB) on startup is less "
            "than desired "
            "GPU memory utilization (0.92, 72.82 GiB). Decrease GPU memory utilization"
        ),
        "GPU 1 has 3.2 of 79.15 GiB free and the engine wants 72.82; another process uses it",
    ),
    (
        (
            "ValueError: Available memory on node 0 (1.5/23.54 GiB) on kv cache allocation is less "
            "than requested memory for kv (4.0 GiB). Decrease --kv-cache-memory-bytes"
        ),
        "the KV cache should have 4.0 GiB and 1.5 are free on memory node 0; lower kv_memory_gib",
    ),
    (
        (
            "ValueError: Available memory on node 0 (1.5/23.54 GiB) on startup is less than "
            "desired "
            "CPU memory utilization (0.92, 21.66 GiB). Reduce"
        ),
        "the engine wants 21.66 GiB and 1.5 are free on memory node 0; set kv_memory_gib",
    ),
    ("OSError: [Errno 98] Address already in use", "a port is taken by another process"),
    (
        (
            "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', "
            "8000): address "
            "already in use"
        ),
        "0.0.0.0:8000 is taken by another process",
    ),
    (
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5600')",
        "tcp://10.0.0.1:5600 is taken by another process",
    ),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "the shared memory, /dev/shm,"),
    (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, User-specified max_model_len (99999) is greater than the derived "
            "max_model_len (max_position_embeddings=8192 or model_max_length=None in model's "
            "config.json). To allow [type=value_error, input_value=ArgsKwargs((), {}), "
            "input_type=X]"
        ),
        "max_model_len is 99999 and the model's own limit 8192; use at most that",
    ),
    (
        (
            "ValueError: Invalid repository ID or local directory specified: '/models/nothing'.\n"
            "Please verify the following requirements:\n1. Provide a valid Hugging Face "
            "repository ID."
        ),
        "no model at /models/nothing; model is a directory with config.json",
    ),
    (
        "OSError: org/x is not a local folder and is not a valid model identifier listed on",
        "the hub has no model org/x, or it is private;",
    ),
    (
        "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor",
        "there is no C++ compiler to compile the model with; install g++",
    ),
    (
        "RuntimeError: NIXL is not available",
        "NIXL, which moves KV between engines, isn't installed",
    ),
    ("RuntimeError: CUDA error: invalid device ordinal", "there is no such GPU; correct devices"),
    (
        (
            "ValueError: Total number of attention heads (9) must be divisible by tensor "
            "parallel size "
            "(2)."
        ),
        "tensor_parallel_size 2 doesn't divide the model's 9 attention heads",
    ),
    # What nothing is known about: the exception's own words, without what they come wrapped in.
    ("KeyError: 'model.layers.0.x'", "KeyError: 'model.layers.0.x'"),
    ("RuntimeError: something new", "something new"),
    ("some.thing.Odd", "Odd"),
    (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n"
            "  Value error, World size (4) is too large [type=value_error, input_value=1]"
        ),
        "World size (4) is too large",
    ),
]


@pytest.mark.parametrize(("error", "told"), CASES, ids=[error[:40] for error, _ in CASES])
def test_the_cause_of_a_failed_start_is_one_line_that_helps(error, told):
    found = failure.cause(failed_start(error), 1).told
    assert found.startswith(told)
    assert "\n" not in found
    assert "Traceback" not in found
    assert "File " not in found


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "api_server.py: error: unrecognized arguments: --kv-cashe-dtype fp8\n",
            "vLLM doesn't know --kv-cashe-dtype fp8; correct flags of its [[pool]]",
        ),
        (
            "api_server.py: error: argument --block-size: invalid int value: 'x'\n",
            "argument --block-size: invalid int value: 'x'",
        ),
        ("Fatal Python error: Segmentation fault\n\nThread 0x7 (most rec", "Segmentation fault"),
        (
            (
                "terminate called after throwing an instance of 'std::bad_alloc'\n"
                "  what():  std::bad_alloc\n"
            ),
            "memory ran out; lower kv_memory_gib",
        ),
    ],
)
def test_ends_without_a_traceback_have_a_cause_too(line, told):
    assert failure.cause(f"usage: api_server.py [-h]\n{line}").told.startswith(told)


@pytest.mark.parametrize(
    ("log", "status", "told"),
    [
        ("", 1, "ended with status 1 without a word"),
        ("", None, "ended without a word"),
        (HARMLESS, 1, "ended with status 1 without a word"),
        (HARMLESS + "so long\n\n", 3, "ended with status 3; its last words: so long"),
        (HARMLESS, 137, "was killed (signal 9), as the kernel does when memory runs out"),
        (HARMLESS, 139, "ended by signal 11 without a word"),
    ],
)
def test_without_an_error_the_status_and_the_last_words_are_told(log, status, told):
    assert failure.cause(log, status).told.startswith(told)


def test_the_last_error_counts_and_chained_ones_are_told_apart():
    chained = [
        *frames("KeyError: 'a'"),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *frames("ValueError: the model is not supported"),
    ]
    log = "".join(f"{CORE}ERROR 11-29 22:54:48 [core.py:1] {line}\n" for line in chained)
    assert failure.cause(log, 1).told == "the model is not supported"


def test_lines_of_processes_may_be_mixed():
    one = printed("(Worker_TP0 pid=1) ", "ValueError: one").splitlines()
    two = printed("(Worker_TP1 pid=2) ", "Exception: WorkerProc initialization failed").splitlines()
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    assert failure.cause("\n".join(mixed), 1).told == "one"


def test_a_log_is_read_from_its_end(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("x" * failure.READ_BYTES + "\n" + failed_start("ValueError: late"))
    assert failure.cause_in(path, 1).told == "late"
    assert failure.cause_in(tmp_path / "none.log", 1).told == "ended with status 1 without a word"


@given(st.lists(st.text(max_size=80), max_size=20), st.one_of(st.none(), st.integers(0, 255)))
def test_any_text_has_a_cause_of_one_line(lines, status):
    found = failure.cause("\n".join(lines), status).told
    assert found.strip()
    assert len(found.splitlines()) == 1


def test_a_remedy_names_only_what_its_pattern_finds():
    """And none asks for a group that may be missing."""
    for pattern, told, _ in failure_patterns.KNOWN:
        wanted = {name for _, name, *_ in string.Formatter().parse(told) if name is not None}
        assert wanted <= set(pattern.groupindex)
