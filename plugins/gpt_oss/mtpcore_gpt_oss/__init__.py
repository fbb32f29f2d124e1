"""gpt-oss 20b and 120b (``gpt-oss``): a trunk, for drafters with files of their own."""

from mtpcore.plugin import ROUTER_TYPE, ModelSpec, hookimpl, trunk_fit
from mtpcore_gpt_oss.checkpoint import CHECKPOINT
from mtpcore_gpt_oss.graph import GptOssHparams, trunk
from mtpcore_gpt_oss.response_template import RESPONSE_TEMPLATE

GPT_OSS = ModelSpec(
    name="gpt_oss",
    fit=trunk_fit("gpt-oss", also=("blk.0.attn_sinks.weight",)),
    hparams=GptOssHparams.read,
    build=trunk,
    min_types=(ROUTER_TYPE,),
    checkpoint=CHECKPOINT,
    response_template=RESPONSE_TEMPLATE,
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunk."""
    return [GPT_OSS]
