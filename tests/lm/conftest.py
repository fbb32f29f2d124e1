"""One LM for each model in the package, and one that can chat."""

import pytest
from harness.demos import DEMOS

import mtpcore
from mtpcore.gguf import ChatTemplate

TEMPLATE = """{% for tool in tools or [] %}<tool>{{ tool.name }}</tool>
{% endfor %}{% for message in messages %}{% if message.role == "nobody" %}
{{ raise_exception("nobody may speak") }}{% endif %}<{{ message.role }}>{{ message.content }}
{% endfor %}{{ mood }}<assistant>"""


@pytest.fixture(scope="session")
def lms():
    """LMs by family."""
    made = {name: mtpcore.LM(name, n_ctx=200, draft=3, threads=1) for name in DEMOS}
    yield made
    for lm in made.values():
        lm.close()


@pytest.fixture
def lm():
    """A new LM of the demo."""
    with mtpcore.LM("demo", n_ctx=200, draft=3, threads=1) as made:
        yield made


@pytest.fixture(scope="session")
def chat_model():
    """The demo with a chat template."""
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate(TEMPLATE)
    return model
