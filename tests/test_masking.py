"""Secrets aren't shown."""

import pytest

from headway import masking


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "VLLM_API_KEY",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_KEY",
        "ENGINE_KEY",
        "MY_KEY",
        "DB_PASSWORD",
        "GOOGLE_CREDENTIALS",
        "hf_token",
        "REDIS_PWD",
        "VAULT_PASSPHRASE",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ],
)
def test_a_variable_whose_name_says_that_it_is_secret_is_hidden(name):
    assert masking.variable(name, "x1") == "***"
    assert masking.variable(name, "") == "", "that it is empty may be seen"


@pytest.mark.parametrize(
    "name",
    [
        "HF_HOME",
        "TOKENIZERS_PARALLELISM",
        "VLLM_MAX_TOKENS_PER_EXPERT",
        "HF_TOKEN_PATH",
        "SSL_KEY_FILE",
        "KEYBOARD",
        "MONKEY",
        "CUDA_VISIBLE_DEVICES",
        "VLLM_LOGGING_LEVEL",
        "OLDPWD",
        "EOS_TOKEN_ID",
    ],
)
def test_others_are_shown(name):
    assert masking.variable(name, "x1") == "x1"


def test_passwords_in_urls_and_well_known_tokens_are_hidden_wherever_they_are():
    assert masking.variable("HTTPS_PROXY", "http://me:pw@proxy:3128") == "http://me:***@proxy:3128"
    assert masking.text("at s3://a:b@c/d and http://x:8000/v1") == (
        "at s3://a:***@c/d and http://x:8000/v1"
    )
    assert masking.text("refused hf_AbCdEfGhIjKl.") == "refused hf_***."
    assert masking.text("hf_home and sk-learn") == "hf_home and sk-learn"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "a", "--x", "b"], ["--api-key", "***", "--x", "b"]),
        (["--api-key", "a", "b", "--x"], ["--api-key", "***", "***", "--x"]),
        (["--api_key=a", "b"], ["--api_key=***", "b"]),
        (["--hf-token=a"], ["--hf-token=***"]),
        (["--hf-token", "--x", "a"], ["--hf-token", "--x", "a"]),
        (["--key", "a"], ["--key", "***"]),
        (["--api-k", "a", "--hf-t=b"], ["--api-k", "***", "--hf-t=***"]),
        (["--ssl-keyfile-password", "a"], ["--ssl-keyfile-password", "***"]),
        (["--watermark-config.key=7"], ["--watermark-config.key=***"]),
        (["--x", '{"a":{"redis_password":"b"}}'], ["--x", '{"a": {"redis_password": "***"}}']),
        (['--x={"key":7,"on":[true]}'], ['--x={"key": "***", "on": [true]}']),
        (["--x", "redis://:p@ss@h:1"], ["--x", "redis://:***@h:1"]),
    ],
)
def test_a_command_line_is_shown_without_its_keys(given, shown):
    assert list(masking.words(given)) == shown


@pytest.mark.parametrize(
    "argv",
    [
        ["--ssl-keyfile", "/a/b.pem"],
        ["--tokenizer", "x"],
        ["--long-prefill-token-threshold", "9"],
        ["--dbo-decode-token-threshold=9"],
        ["--max-num-batched-tokens", "9"],
        ["--spec-tokens", "9"],
        ["--x", '{"a":  {"max_tokens":9,"eos_token_id":2}}'],
        ["--x", "{not JSON", "-O3", "[1, 2]"],
    ],
)
def test_what_only_sounds_like_a_secret_is_shown_as_it_is(argv):
    assert list(masking.words(argv)) == argv


def test_a_log_is_shown_without_what_it_names_as_a_secret():
    said = (
        "args: {'redis_password': 'a', \"x\": 'b'} api_key=\"c\" Authorization: Bearer ab-12345678"
    )
    assert masking.text(said) == (
        "args: {'redis_password': '***', \"x\": 'b'} api_key=\"***\" Authorization: Bearer ***"
    )
    line = {"redis_password": "a", "key": None, "prompt_tokens": 3, "more": [{"token": 5}]}
    shown = {"redis_password": "***", "key": None, "prompt_tokens": 3, "more": [{"token": "***"}]}
    assert masking.values(line) == shown


@pytest.mark.parametrize("piece", ["a.-", '"a": ', "Bearer ", "://a:", "key='", "sk-"])
def test_a_log_is_read_in_a_time_that_grows_with_its_length(piece):
    """A quadratic pattern takes minutes for this."""
    assert masking.text(piece * 50_000)
