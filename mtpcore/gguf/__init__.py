"""Model files: bounded GGUF headers, mapped tensors, typed metadata, tokenizers, writing.

The only place that knows GGUF's reversed order of axes; shapes here are outermost first.
"""

from mtpcore.gguf.chat import ChatTemplate, read_chat_template
from mtpcore.gguf.file import ModelFile, open_model_file
from mtpcore.gguf.header import Header, Metadata, MetadataValue, TensorInfo, parse_header
from mtpcore.gguf.joined_tensor import JoinedTensor
from mtpcore.gguf.merge import merge
from mtpcore.gguf.metadata import Fields, convert
from mtpcore.gguf.needless import NEEDLESS_TENSORS, is_needless
from mtpcore.gguf.stream import StreamedFile, StreamedTensor, stream_model_files
from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.tensor_rows import TensorRows
from mtpcore.gguf.tokenizer import TextStream, Tokenizer, read_tokenizer
from mtpcore.gguf.writer import write_model_file

__all__ = [
    "NEEDLESS_TENSORS",
    "ChatTemplate",
    "Fields",
    "Header",
    "JoinedTensor",
    "Metadata",
    "ModelFile",
    "StreamedFile",
    "StreamedTensor",
    "Tensor",
    "TensorInfo",
    "TensorRows",
    "TextStream",
    "Tokenizer",
    "MetadataValue",
    "convert",
    "is_needless",
    "merge",
    "open_model_file",
    "parse_header",
    "read_chat_template",
    "read_tokenizer",
    "stream_model_files",
    "write_model_file",
]
