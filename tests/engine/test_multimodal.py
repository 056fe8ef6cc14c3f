"""Prompts with images: vLLM cuts their chunks where its encoder or the encoder's cache is full."""

import random

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.request import RequestStatus

from .conftest import teach
from .harness import make_request, mid_prefill, tokens_left

POLICIES = ("sequential", "parallel", "priority", "slo")
LONG = 400


def image(identifier, offset, length):
    return MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier=identifier,
        mm_position=PlaceholderRange(offset=offset, length=length),
    )


def pictured(tokens, output=4, *, at=(0,), length=32, images=None, name=None, **options):
    """A prompt with an image of `length` tokens at each offset; `images` are their identities."""
    request = make_request(tokens, output, name=name, **options)
    names = images or [f"{request.request_id}/{offset}" for offset in at]
    request.mm_features = [
        image(identity, offset, length) for identity, offset in zip(names, at, strict=True)
    ]
    return request


@pytest.fixture
def seeing(drive):
    """Makes a driver on an engine with an encoder."""

    def made(policy="parallel", *, encoder=256, cache=512, **options):
        driver = drive(policy, long_prefill_token_threshold=LONG, **options)
        driver.scheduler.max_num_encoder_input_tokens = encoder
        driver.scheduler.encoder_cache_manager = EncoderCacheManager(cache)
        if policy == "slo":
            teach(driver.scheduler)
        return driver

    return made


def check_caps(scheduler, partial):
    left = [tokens_left(r) for r in mid_prefill(scheduler)]
    assert len(left) <= partial
    assert sum(tokens > LONG for tokens in left) <= scheduler.headway.policy.caps.long


def check_nothing_left(scheduler, free_blocks):
    encoder = scheduler.encoder_cache_manager
    assert not encoder.request_cached_ids
    assert encoder.num_freeable_slots == encoder.cache_size
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free_blocks
    assert len(scheduler.headway.tracks) == 0
    assert len(scheduler.headway.policy.backlog) == 0


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def decoding(driver, count):
    for i in range(count):
        driver.add(make_request(16, 2_000, name=f"decode{i}", arrival_time=driver.clock.time()))
    while len(driver.first_token_step) < count:
        driver.step()


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_token_budget_limits_its_chunks(seeing, policy):
    """Its chunks can't be sized at will, so deadlines of decodes don't shorten them."""
    driver = seeing(policy, budget=1_024, tpot_slo_s=0.05)
    decoding(driver, 8)
    driver.add(pictured(4_000, 1, name="pictured", arrival_time=driver.clock.time()))
    for _ in range(3):
        assert driver.step().num_scheduled_tokens["pictured"] == 1_024 - 8


def test_deadlines_of_decodes_do_shorten_the_chunks_of_text(seeing):
    """What the test above would see if images were overlooked."""
    driver = seeing("slo", budget=1_024, tpot_slo_s=0.05)
    decoding(driver, 8)
    driver.add(make_request(4_000, 1, name="text", arrival_time=driver.clock.time()))
    for _ in range(3):
        assert driver.step().num_scheduled_tokens.get("text", 0) < 1_000


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chunk_ends_before_an_image_the_encoder_has_no_time_for(seeing, policy):
    """One image a step fits the encoder: each chunk ends where the next image begins."""
    driver = seeing(policy, budget=512, encoder=100)
    driver.add(pictured(600, 1, name="three", at=(0, 200, 400), length=100))
    done = []
    while "three" not in driver.finished_step:
        done.append(driver.step().num_scheduled_tokens.get("three"))
    assert [tokens for tokens in done if tokens] == [200, 200, 200]


def random_request(driver, rng):
    tokens = rng.choice((60, 200, LONG + 1, 1_500, 3_000))
    output, arrival = rng.randint(1, 10), driver.clock.time()
    if rng.random() < 0.4:
        return make_request(tokens, output, arrival_time=arrival)
    at = sorted(rng.sample(range(0, tokens - 40, 40), min(rng.randint(1, 6), tokens // 50)))
    images = [f"image{rng.randint(0, 40)}" for _ in at] if rng.random() < 0.5 else None
    return pictured(tokens, output, at=at, length=40, images=images, arrival_time=arrival)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("encoder", "cache"), [(40, 40), (80, 200), (256, 2_000)])
@pytest.mark.parametrize("partial", [1, 4])
def test_a_mixed_load_is_finished_within_the_caps(seeing, policy, encoder, cache, partial):
    """Some share images, some leave half-way; the encoder and its cache are short, or not."""
    driver = seeing(
        policy,
        encoder=encoder,
        cache=cache,
        budget=256,
        seats=12,
        max_num_partial_prefills=partial,
    )
    scheduler, rng = driver.scheduler, random.Random(encoder + partial)
    free, wanted = free_blocks(scheduler), {}
    while driver.steps < 50 or scheduler.has_unfinished_requests():
        for _ in range(rng.choice((0, 1, 2)) if driver.steps < 50 else 0):
            request = random_request(driver, rng)
            wanted[request.request_id] = request.max_tokens
            driver.add(request)
        if rng.random() < 0.05 and wanted.keys() & scheduler.requests.keys():
            gone = rng.choice(sorted(wanted.keys() & scheduler.requests.keys()))
            scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
            driver.tokens.pop(gone, None)
            del wanted[gone]
        driver.step()
        check_caps(scheduler, partial)
        assert driver.steps < 3_000
    driver.run()
    assert {i: driver.tokens.get(i) for i in wanted} == wanted
    check_nothing_left(scheduler, free)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_waits_for_the_encoders_cache_lets_the_one_that_fills_it_go_on(seeing, policy):
    """The first image is in use until the long prompt has passed it; only then there is room."""
    driver = seeing(policy, budget=128, cache=600, encoder=600)
    driver.add(pictured(3_000, 1, name="holder", at=(0,), length=600))
    driver.step()
    driver.add(pictured(200, 1, name="short", at=(0,), length=100))
    driver.run(most=100)
    assert {"holder", "short"} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
def test_several_that_wait_for_the_encoders_cache_let_the_one_that_fills_it_go_on(seeing, policy):
    """Whichever of them is tried takes the step from the one that they wait for."""
    driver = seeing(policy, budget=128, cache=600, encoder=600)
    driver.add(pictured(3_000, 1, name="holder", at=(0,), length=600))
    driver.step()
    driver.add(*(pictured(128, 1, name=f"short{i}", at=(0,), length=100) for i in range(4)))
    driver.run(most=100)
    assert {"holder", *(f"short{i}" for i in range(4))} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_stops_at_an_image_lets_the_one_that_fills_the_cache_go_on(seeing, policy):
    """As above, but it has started and stops before its image."""
    driver = seeing(policy, budget=128, cache=600, encoder=600)
    driver.add(pictured(3_000, 1, name="holder", at=(0,), length=600))
    driver.step()
    driver.add(pictured(390, 1, name="short", at=(100,), length=100))
    driver.run(most=100)
    assert {"holder", "short"} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_waits_for_the_encoders_cache_lets_text_pass(seeing, policy):
    driver = seeing(policy, budget=128, cache=600, encoder=600)
    driver.add(pictured(900, 1, name="holder", at=(0,), length=600))
    driver.step()
    driver.add(pictured(60, 1, name="short", at=(0,), length=50))
    driver.add(make_request(60, 1, name="text"))
    driver.run(most=100)
    assert {"holder", "short", "text"} <= set(driver.finished_step)
    if policy != "sequential":
        assert driver.finished_step["text"] < driver.first_token_step["short"]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_image_reused_for_other_content_fails_alone(seeing, policy):
    """Its size differs from the cached one's: vLLM refuses it, others go on."""
    driver = seeing(policy)
    driver.add(pictured(700, 8, name="first", images=["same"], length=64))
    driver.step()
    driver.add(pictured(300, 2, name="odd", images=["same"], length=32))
    driver.add(make_request(60, 2, name="text"))
    driver.run(most=60)
    assert driver.reasons["odd"] == "error"
    assert driver.tokens == {"first": 8, "text": 2}
