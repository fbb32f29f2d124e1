"""How answers of Gemma 4 are parsed: by the marks of its chat template (``gemma-4-31B-it``).

A call is ``<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>``: JSON with keys without quotes, and
texts between marks of their own.
"""

import json

RESPONSE_TEMPLATE = json.dumps(
    {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "reasoning_content": {
                "open": "<|channel>thought\n",
                "close_pattern": r"<channel\|>\s*",
            },
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>[\w.\-]+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{content}"},
                },
            },
            "content": {"close": ["<turn|>", "<|tool_response>"]},
        },
    }
)
