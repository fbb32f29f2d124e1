"""How answers of gpt-oss are parsed: channels of OpenAI's harmony format (``openai-harmony``).

Reasoning is in the channel ``analysis``, what is said in ``final`` and ``commentary``. A call names
its function before the channel, as the chat template writes it, or after it, as the model does.
"""

import json

RESPONSE_TEMPLATE = json.dumps(
    {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"(?:<\|channel\|>(?:commentary|analysis)\s*)?to=functions\."
                r"(?P<name>[\w.\-]+)\s*(?:<\|channel\|>(?:commentary|analysis))?\s*"
                r"(?:<\|constrain\|>)?(?:json)?\s*<\|message\|>",
                "close": "<|call|>",
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{content}"},
                },
            },
            "content": {
                "open_pattern": r"<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>\w+)?"
                r"<\|message\|>",
                "close": ["<|end|>", "<|return|>"],
                "repeats": True,
                "join": "\n",
            },
        },
    }
)
