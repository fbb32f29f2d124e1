"""A server for clients of other programs' APIs: chat, completions, and what goes with them.

``build_app`` makes an ASGI application of an ``LM``. Its answers are those of ``LM.generate``: they
depend on the request alone, not on drafts, nor on who else is served.
"""

from mtpcore.serving.application import build_app
from mtpcore.serving.settings import ServerSettings

__all__ = ["ServerSettings", "build_app"]
