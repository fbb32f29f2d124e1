"""Prompts of Qwen3-TTS: which text and which codes stand in which row."""

from __future__ import annotations

import numpy as np

from harness import qwen_tts
from harness.qwen_tts import LANGUAGES, MARKS, N_CODEBOOKS, SPEAKERS, Speech
from mtpcore import Codes, Prompt, Rows


def marks(*ids: int) -> np.ndarray:
    """Return frames with a first code and no others."""
    frames = np.full((len(ids), N_CODEBOOKS), -1, np.int32)
    frames[:, 0] = ids
    return frames


def rows_of(speech: Speech) -> tuple[Prompt, list[int]]:
    """Return the prompt of a speech, and the text that is read beside its frames.

    As ``Qwen3TTSForConditionalGeneration.generate`` lays them out.
    """
    pad, bos, _, think, nothink, think_bos, think_eos = MARKS.values()
    begin = [qwen_tts.IM_START, qwen_tts.ASSISTANT, qwen_tts.NEWLINE]
    text, end = speech.text, qwen_tts.TTS_EOS
    language = LANGUAGES.get(speech.language)
    kind = [nothink] if language is None else [think]
    tags = [*kind, think_bos, *([] if language is None else [language]), think_eos]
    parts = [*([speech.instruct] if speech.instruct else []), begin, Codes(marks(*tags))]
    if isinstance(speech.speaker, str):
        parts.append(Codes(marks(SPEAKERS[speech.speaker])))
    elif speech.speaker is not None:
        parts.append(Rows(speech.speaker[None]))
    parts.append(Codes(marks(pad), [qwen_tts.TTS_BOS]))
    if speech.reference is not None:
        known, frames = speech.reference
        read, spoken = [*known, *text, end], np.concatenate([marks(bos), frames])
        now = [*read[: len(spoken)], *[-1] * (len(spoken) - len(read))]
        return Prompt(*parts, Codes(spoken, now)), read[len(spoken) :]
    if speech.streams:
        return Prompt(*parts, Codes(marks(bos), text[:1])), [*text[1:], end]
    whole = Codes(marks(*[pad] * (len(text) + 1)), [*text, end])
    return Prompt(*parts, whole, Codes(marks(bos))), []
