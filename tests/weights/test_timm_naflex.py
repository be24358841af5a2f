"""timm's NaFlex networks: linear patch weights, a table that need not be square; read and written back."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file

from vitrail.weights import convert, load
from weights.parity import assert_equal, assert_same_bits
from weights.timm_files import THEIRS, saved


@pytest.mark.parametrize("pool", ["map", "avg"])
def test_naflex(timm: ModuleType, tmp_path: Path, pool: str) -> None:
    """Linear patch weights in the order of pixels, the table as a grid that need not be square."""
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    sizes = {name: THEIRS[name] for name in ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")}
    norms = {"final_norm": pool == "map", "fc_norm": pool == "avg"}
    cfg = NaFlexVitCfg(**sizes, **norms, reg_tokens=2, global_pool=pool, pos_embed_grid_size=(4, 3), init_values=1e-5)
    theirs = NaFlexVit(cfg, num_classes=10, img_size=(32, 24)).eval()
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert ours.provenance.family == "timm-naflex"
    assert_equal(ours.model, theirs, ((32, 24), (48, 48), (40, 24)))
    convert(path, tmp_path / "out", to="timm-naflex")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    made = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_equal(ours.model, made, ((32, 24), (48, 48)))
