"""Our CPU runtime: a checkpoint packed for oneDNN, the same answers faster. Pack, save, open; all else stays inside."""

from vitrail.packed.onednn_kernels import large_products
from vitrail.packed.packed_file import check_overwrite, is_packed, open_packed, save_packed
from vitrail.packed.packed_runtime import Packed, pack_checkpoint

__all__ = ["Packed", "check_overwrite", "is_packed", "large_products", "open_packed", "pack_checkpoint", "save_packed"]
