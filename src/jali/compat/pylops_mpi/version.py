"""The version of pylops-mpi whose interface this is."""

__version__ = version = "0.8.0"
__version_tuple__ = version_tuple = (0, 8, 0)
__commit_id__ = commit_id = None
