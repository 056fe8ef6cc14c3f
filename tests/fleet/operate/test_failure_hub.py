"""What goes wrong with a model, as huggingface_hub, transformers and safetensors raise it here, is
told apart; and what no restart heals isn't tried again.
"""

import errno
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from headway.fleet.operate import failure

from .test_failure import API, WORKER, failed_start

RESTRICTED = "Access to model org/{} is restricted"
HUB = {
    "org/missing": (
        404,
        {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
    ),
    "org/missing-to-strangers": (
        401,
        {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."},
    ),
    "org/any": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "org/gated": (
        403,
        {
            "X-Error-Code": "GatedRepo",
            "X-Error-Message": f"{RESTRICTED.format('gated')} and you are not in the "
            "authorized list. Visit the page to ask for access.",
        },
    ),
    "org/gated-to-strangers": (
        401,
        {
            "X-Error-Code": "GatedRepo",
            "X-Error-Message": f"{RESTRICTED.format('gated-to-strangers')}. You must have "
            "access to it and be authenticated to access it. Please log in.",
        },
    ),
    "org/fine-grained": (
        403,
        {"X-Error-Message": "Please enable access to public gated repositories in your token"},
    ),
    "org/no-revision": (
        404,
        {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev"},
    ),
    "org/limited": (
        429,
        {"RateLimit": '"api";r=0;t=55', "X-Error-Message": "We had to rate limit"},
    ),
    "org/limited-somehow": (429, {}),
    "org/broken": (503, {}),
    "org/unreachable": None,
}
TOLD = {
    "org/missing": ("the hub has no model org/missing, or it is private; check the name", True),
    "org/missing-to-strangers": ("the hub has no model org/missing-to-strangers, or", True),
    "org/any": ("the hub doesn't know the token; correct HF_TOKEN", True),
    "org/gated": ("the owner of HF_TOKEN hasn't accepted the licence of org/gated", True),
    "org/gated-to-strangers": ("org/gated-to-strangers asks for its licence to be accepted", True),
    "org/fine-grained": ("the hub refuses the token of HF_TOKEN: Please enable access", True),
    "org/no-revision": ("the model has no such revision; correct --revision", True),
    "org/limited": ("the hub takes no more requests for 55 s (429); wait", False),
    "org/limited-somehow": ("the hub takes no more requests for now (429); wait", False),
    "org/broken": ("the hub has trouble of its own (503 Service Unavailable); try later", False),
    "org/unreachable": ("the hub http://127.0.0.1:", False),
}


def written(process, error):
    """The traceback as an engine's process prints it."""
    return "".join(f"{process}{line}\n" for line in error.splitlines())


@pytest.fixture(scope="module")
def raised():
    """What comes of asking for each model."""
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("failing_hub.py"), json.dumps(HUB)],
        env={name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.parametrize("model", HUB)
def test_a_hub_s_refusals_are_told_apart(raised, model):
    said, lasting = TOLD[model]
    found = failure.cause(written(API, raised[model]), 1)
    assert found.told.startswith(said)
    assert found.lasting is lasting


@pytest.mark.process
def test_what_came_first_counts_where_the_last_error_says_less(raised):
    """Of another process's chain nothing is taken."""
    limited = written(API, raised["org/limited"]).splitlines()
    other = written(WORKER, raised["org/unreachable"]).splitlines()
    mixed = [line for pair in zip(limited, other, strict=False) for line in pair]
    mixed += limited[len(other) :]
    assert "429" in failure.cause("\n".join(mixed), 1).told


@pytest.mark.parametrize("kept", [lambda size: size // 2, lambda size: size - 5, lambda _: 4])
def test_weights_that_broke_off_are_told(tmp_path, kept):
    torch_free = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "model.safetensors"
    pytest.importorskip("safetensors.numpy").save_file({"a": numpy.zeros(100)}, path)
    os.truncate(path, kept(path.stat().st_size))
    with pytest.raises(torch_free.SafetensorError) as caught:
        torch_free.safe_open(path, framework="numpy")
    log = written(WORKER, "".join(traceback.format_exception(caught.value)))
    assert failure.cause(log, 1).told.startswith("a file of the model's weights isn't complete")


def test_a_full_disk_is_told():
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb", 0) as full:  # noqa: PTH123
        full.write(b"x")
    log = written(WORKER, "".join(traceback.format_exception(caught.value)))
    found = failure.cause(log, 1)
    assert found.told.startswith("a disk is full")
    assert found.lasting


def refused(code, path):
    """The system's error of this number, as a traceback ends with it."""
    error = OSError(code, os.strerror(code), path)
    return f"{type(error).__name__}: {error}"


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version "
    "2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
    "device error. \nLast error:\n"
)
GCC = (
    "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/build/cuda_utils.c', '-O3', "
    "'-shared', '-lcuda', '-o', '/build/cuda_utils.so']' returned non-zero exit status 1."
)
MACHINES = [
    (refused(errno.ENOSPC, "/data/hub/x"), "the disk of /data/hub/x is full; make room", True),
    (
        (
            "RuntimeError: Data processing error: File reconstruction error: IO Error: No space "
            "left on device (os error 28)"
        ),
        "a disk is full",
        True,
    ),
    (
        (
            f"{NCCL}Error while creating shared memory segment /dev/shm/nccl-kKVX (size 9637888), "
            "error: No space left on device (28)"
        ),
        "the shared memory, /dev/shm, is too small",
        True,
    ),
    (
        (
            f"{NCCL}Error: failed to extend /dev/shm/nccl-aaTYJa to 33030532 bytes, error: No "
            "space left on device (28)"
        ),
        "the shared memory, /dev/shm, is too small",
        True,
    ),
    (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "NCCL, which moves tensors between GPUs, failed, mostly as /dev/shm is too small",
        False,
    ),
    (
        "RuntimeError: unable to write to file </torch_12_34>: No space left on device (28)",
        "the shared memory, /dev/shm, is too small",
        True,
    ),
    (
        (
            "RuntimeError: unable to open file </torch_12_34> in read-write mode: No space left on "
            "device (28)"
        ),
        "the shared memory, /dev/shm, is too small",
        True,
    ),
    (refused(errno.EACCES, "/.cache"), "/.cache can't be used by this user", True),
    (refused(errno.EROFS, "/cache/hub"), "/cache/hub can't be used by this user", True),
    (
        (
            "OSError: PermissionError at /cache/hub/models--a--b when downloading a/b. Check cache "
            "directory permissions. Common causes: 1) another user is downloading the same model"
        ),
        "/cache/hub/models--a--b can't be used by this user",
        True,
    ),
    (
        (
            "AssertionError: libcuda.so cannot found!\nPlease make sure GPU is set up and then run "
            '"/sbin/ldconfig" (requires sudo) to refresh the linker cache.'
        ),
        "the NVIDIA driver's libcuda isn't found",
        True,
    ),
    (
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "the NVIDIA driver's libcuda isn't found",
        True,
    ),
    (
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
        "vLLM or torch is built for another CUDA than is installed (libcudart.so.13 is missing)",
        True,
    ),
    (
        "RuntimeError: Cannot find any model weights with `/models/x`",
        "/models/x has no weights in a form that vLLM reads",
        True,
    ),
    (
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached "
            "snapshot folder for the specified revision on the local disk and outgoing traffic "
            "has been disabled. "
            "To enable repo look-ups and downloads online, pass 'local_files_only=False' as input."
        ),
        "the model isn't in the hub's cache, and HF_HUB_OFFLINE lets nothing be fetched",
        True,
    ),
    (
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to "
            "locate the files on the Hub and we cannot find the appropriate snapshot folder for "
            "the specified revision on the local disk. Please check your internet connection."
        ),
        "the hub can't be reached from here",
        False,
    ),
    (
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': './a/b/c'. Use `repo_type` argument if needed."
        ),
        "no model at ./a/b/c;",
        True,
    ),
    (
        (
            "httpcore2.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate in certificate chain (_ssl.c:1016)"
        ),
        "the hub's certificate isn't trusted here",
        True,
    ),
]


@pytest.mark.parametrize(("error", "told", "lasting"), MACHINES, ids=[m[0][:50] for m in MACHINES])
def test_what_a_machine_lacks_is_told(error, told, lasting):
    found = failure.cause(failed_start(error), 1)
    assert found.told.startswith(told)
    assert found.lasting is lasting


@pytest.mark.parametrize(
    ("compiler", "told"),
    [
        (
            (
                "/build/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory\n"
                "    5 | #include <Python.h>\n      |          ^~~~~\ncompilation terminated.\n"
            ),
            "Python's headers, with which kernels are compiled, aren't installed",
        ),
        (
            (
                "/usr/bin/ld: cannot find -lcuda: No such file or directory\n"
                "collect2: error: ld returned 1 exit status\n"
            ),
            "the NVIDIA driver's libcuda isn't found",
        ),
    ],
)
def test_why_a_compiler_failed_is_in_what_it_said(compiler, told):
    """The exception of who called it says only that."""
    log = "".join(f"{WORKER}{line}\n" for line in compiler.splitlines()) + failed_start(GCC)
    found = failure.cause(log, 1)
    assert found.told.startswith(told)
    assert found.lasting


def test_what_nothing_is_known_about_is_tried_again():
    assert not failure.cause(failed_start("RuntimeError: something new"), 1).lasting
    assert not failure.cause("", 137).lasting
