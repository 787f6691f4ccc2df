"""The papers' data sets, and two that need no download."""

from weft.data.batches import batch_indices, owned_indices
from weft.data.dataset import Dataset
from weft.data.eua import Places, load_eua
from weft.data.sets import load, names

__all__ = ["Dataset", "Places", "batch_indices", "load", "load_eua", "names", "owned_indices"]
