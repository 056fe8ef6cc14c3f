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
        (["--key", "a"], ["--key", "a"]),
    ],
)
def test_a_command_line_is_shown_without_its_keys(given, shown):
    assert list(masking.words(given)) == shown
