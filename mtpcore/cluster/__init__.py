"""More than one machine: a server whose replicas Ray runs, and texts of all rows of a data set.

``application`` makes an application of Ray Serve; ``write_texts`` runs a job of Ray Data. Ray is
imported when one of them is called.
"""

from mtpcore.cluster.application import application
from mtpcore.cluster.job import write_texts
from mtpcore.cluster.rows import RowTexts
from mtpcore.cluster.settings import ClusterSettings

__all__ = ["ClusterSettings", "RowTexts", "application", "write_texts"]
