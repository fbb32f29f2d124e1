"""A server of the demo, with a chat template, and its clients."""

import httpx2
import pytest
from harness.served import serving

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.serving import ServerSettings

TEMPLATE = """{% for tool in tools or [] %}<tool>{{ tool.function.name }}</tool>
{% endfor %}{% for message in messages %}{% if message.role == "nobody" %}
{{ raise_exception("nobody may speak") }}{% endif %}<{{ message.role }}>{{ message.content }}
{% endfor %}{{ mood }}{% if add_generation_prompt %}<assistant>{% endif %}"""
SETTINGS = ServerSettings(
    name="demo", max_body=100_000, max_waiting=40, max_choices=8, keep_alive=0.05
)


@pytest.fixture(scope="session")
def model():
    """The demo with a chat template."""
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(TEMPLATE)
    return made


@pytest.fixture(scope="session")
def lm(model):
    """What is served."""
    with mtpcore.LM(model, n_ctx=200, draft="auto", n_seq_max=4, threads=1) as made:
        yield made


@pytest.fixture(scope="session")
def address(lm):
    """Where it is served."""
    with serving(lm, SETTINGS) as url:
        yield url


@pytest.fixture(scope="session")
def openai():
    """OpenAI's package: every process that collects these tests would import it for seconds."""
    import openai

    return openai


@pytest.fixture(scope="session")
def anthropic():
    """Anthropic's package, likewise."""
    import anthropic

    return anthropic


@pytest.fixture
def client(openai, address):
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def http(address):
    """A client without an API of its own."""
    with httpx2.Client(base_url=address, timeout=60) as made:
        yield made
