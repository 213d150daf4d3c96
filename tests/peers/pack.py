"""Packs other libraries' tests, and the modules of those libraries that they import, into .carry/peers.tar.xz for
`tests/gpu_session.sh OUT peers`. The pack is not committed.

    python tests/peers/pack.py --fla GIT --fla-core WHEEL --flashqla GIT --flashkda GIT --flashinfer GIT --vllm SDIST \\
        --sglang WHEEL --sglang-tests FOLDER --sglang-mamba-tests FOLDER --sglang-kda-tests FOLDER --causal-conv1d SDIST \\
        --mamba-ssm GIT

Each source is a git directory or checkout (its HEAD is read), an sdist, a wheel, or a folder. Only the named ones are packed.
Tested with:

    fla            https://github.com/fla-org/flash-linear-attention at bc3b101
    fla-core       pip download --no-deps fla-core==0.6.0
    flashqla       https://github.com/QwenLM/FlashQLA at c18a486
    flashkda       https://github.com/MoonshotAI/FlashKDA at 1ce47ea
    flashinfer     https://github.com/flashinfer-ai/flashinfer at fb28d72
    vllm           the sdist vllm-0.33.0.tar.gz of PyPI, or a checkout of v0.33.0
    sglang         pip download --no-deps sglang==0.5.23
    sglang-tests   https://github.com/sgl-project/sglang at 06ab04a, for the tests that the wheel lacks
    sglang-mamba-tests  the same repository, at 0465eeb and 05f70dc
    sglang-kda-tests  the same repository, at 05f70dc
    causal-conv1d  pip download --no-deps --no-binary :all: --no-build-isolation causal-conv1d==1.7.0
    mamba-ssm      https://github.com/state-spaces/mamba at e9594ce

einops, which the tests import, is taken from this environment.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / ".carry" / "peers.tar.xz"
_VLLM = "vllm/third_party/flash_linear_attention"
_SGLANG = "sglang/kernels/ops/attention"
# By source: its files, and the folder that they are copied to. Files of a package keep their paths below `site`.
PARTS: dict[str, list[tuple[str, str]]] = {
    "fla": [
        ("tests/ops/test_gdn.py", "peer_fla"),
        ("tests/ops/test_kda.py", "peer_fla_kda"),
        ("tests/context_parallel/test_cp_conv.py", "peer_fla_cp"),
        ("tests/context_parallel/test_cp_gdn.py", "peer_fla_cp"),
        ("tests/context_parallel/test_cp_kda.py", "peer_fla_cp"),
    ],
    "fla-core": [("fla/*.py", "site"), ("fla_core-*.dist-info/METADATA", "site")],
    "flashqla": [
        ("tests/ref_gdr.py", "peer_flashqla"),
        ("tests/test_gdr_unit.py", "peer_flashqla"),
        ("flash_qla/utils/*.py", "site"),
    ],
    "flashkda": [("tests/test_fwd.py", "peer_flashkda")],
    "flashinfer": [
        ("tests/kda/test_fused_kda_decode.py", "peer_flashinfer_kda"),
        ("tests/kda/test_recurrent_kda.py", "peer_flashinfer_kda"),
        ("tests/gdn/conftest.py", "peer_flashinfer"),
        ("tests/gdn/reference_delta_rule.py", "peer_flashinfer"),
        ("tests/gdn/test_decode_delta_rule.py", "peer_flashinfer"),
        ("tests/gdn/test_decode_pretranspose_bf16_padded_pool.py", "peer_flashinfer"),
        ("tests/gdn/test_prefill_delta_rule.py", "peer_flashinfer"),
        ("tests/gdn/test_prefill_state_indices.py", "peer_flashinfer"),
        ("tests/mamba/test_selective_state_update_*.py", "peer_flashinfer_mamba"),
        ("tests/mamba/utils.py", "peer_flashinfer_mamba"),
        ("tests/mamba/triton_reference/s*.py", "peer_flashinfer_mamba/triton_reference"),
    ],
    "vllm": [
        ("tests/kernels/fla/test_fused_recurrent_packed_decode.py", "peer_vllm"),
        ("tests/kernels/fla/test_fused_sigmoid_gating_delta_rule.py", "peer_vllm"),
        ("tests/kernels/mamba/test_causal_conv1d.py", "peer_vllm"),
        (f"{_VLLM}/*.py", "site"),
        ("tests/kernels/mamba/test_mamba2_checkpoint_state.py", "peer_vllm"),
        ("tests/kernels/mamba/test_mamba_ssm.py", "peer_vllm"),
        ("tests/kernels/mamba/test_mamba_ssm_ssd.py", "peer_vllm"),
        ("tests/kernels/mamba/test_mamba_ssm_ssd.py", "site"),  # the checkpoints' tests import it by this path
        ("tests/kernels/mamba/utils.py", "site"),
        ("tests/models/glm5next/test_kda_recurrent.py", "peer_vllm_kda"),
        ("tests/models/kimi_k3/test_kda.py", "peer_vllm_kda"),
        ("vllm/models/glm5next/nvidia/ops/third_party/kda/*.py", "site"),
        ("vllm/models/kimi_k3/nvidia/ops/third_party/kda/*.py", "site"),
        ("vllm/model_executor/layers/mamba/kda_checkpoint.py", "site"),
        ("vllm/model_executor/layers/mamba/ops/gather_initial_states.py", "site"),
        ("vllm/model_executor/layers/mamba/checkpoint.py", "site"),
        ("vllm/model_executor/layers/mamba/ops/causal_conv1d.py", "site"),
        ("vllm/model_executor/layers/mamba/ops/mamba_ssm.py", "site"),
        ("vllm/model_executor/layers/mamba/ops/ssd_*.py", "site"),
        ("vllm/model_executor/layers/mamba/ops/triton_helpers.py", "site"),
        ("vllm/v1/attention/backends/mamba2_attn.py", "site"),
        ("vllm/v1/attention/backends/mamba_attn.py", "site"),
    ],
    "sglang": [
        (f"{_SGLANG}/fla/*.py", "site"),
        (f"{_SGLANG}/linear/fused_recurrent_linear_replayssm.py", "site"),
        (f"{_SGLANG}/linear/fused_sigmoid_gating_recurrent.py", "site"),
        ("sglang/kernels/ops/mamba/causal_conv1d_triton.py", "site"),
        ("sglang/kernels/ops/mamba/triton_ops/*.py", "site"),
        ("sglang/srt/layers/attention/mamba/mamba2_metadata.py", "site"),
        ("sglang/srt/layers/attention/linear/kernels/gdn_triton.py", "site"),
        ("sglang/srt/layers/attention/linear/kernels/kda_triton.py", "site"),
        ("sglang/srt/layers/attention/linear/kernels/kernel_backend.py", "site"),
    ],
    "sglang-tests": [
        ("test/registered/attention/test_chunk_gated_delta_rule.py", "peer_sglang"),
        ("test/registered/attention/test_gdn_prefill_flashqla.py", "peer_sglang"),
    ],
    "sglang-mamba-tests": [
        ("test/registered/layers/mamba/test_mamba_ssm.py", "peer_sglang_mamba"),
        ("test/registered/layers/mamba/test_mamba_ssm_ssd.py", "peer_sglang_mamba"),
    ],
    "sglang-kda-tests": [("test/registered/attention/test_kda_kernels.py", "peer_sglang_kda")],
    "causal-conv1d": [("tests/test_causal_conv1d.py", "peer_causal_conv1d"), ("causal_conv1d/*.py", "site")],
    "mamba-ssm": [
        ("tests/ops/triton/test_selective_state_update.py", "peer_mamba_ssm"),
        ("tests/ops/triton/test_ssd.py", "peer_mamba_ssm"),
        ("mamba_ssm/ops/triton/*.py", "site"),
        ("mamba_ssm/utils/determinism.py", "site"),
        ("mamba_ssm/utils/torch.py", "site"),
    ],
}
Read = Callable[[], bytes]


def files_of(source: Path) -> dict[str, Read]:
    """Readers of the source's files, by path inside the source."""
    if source.is_dir():
        is_git = (source / ".git").exists() or (source / "HEAD").is_file()
        return (
            _git_files(source)
            if is_git
            else {str(p.relative_to(source)): p.read_bytes for p in source.rglob("*") if p.is_file()}
        )
    if source.suffix == ".whl":
        wheel = zipfile.ZipFile(source)
        return {name: lambda name=name: wheel.read(name) for name in wheel.namelist()}
    sdist = tarfile.open(source)  # noqa: SIM115  (the functions read it)
    members = {member.name.partition("/")[2]: member for member in sdist if member.isfile()}
    return {name: lambda member=member: sdist.extractfile(member).read() for name, member in members.items()}


def _git_files(source: Path) -> dict[str, Read]:
    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(source), *arguments], check=True, capture_output=True).stdout

    names = git("ls-tree", "-r", "--name-only", "--full-tree", "HEAD").decode().splitlines()
    return {name: lambda name=name: git("show", f"HEAD:{name}") for name in names}


def parts_of(name: str, source: Path) -> dict[str, bytes]:
    """The files to pack from a source. Raises SystemExit if one is missing."""
    files = files_of(source)
    found: dict[str, bytes] = {}
    for pattern, folder in PARTS[name]:
        matching = [path for path in files if fnmatch(path, pattern)]
        if not matching:
            raise SystemExit(f"pack.py: --{name}: expected {pattern} in {source}, got none")
        for path in matching:
            found[f"site/{path}" if folder == "site" else f"tests/{folder}/{Path(path).name}"] = files[path]()
            if folder != "site":
                found.setdefault(f"tests/{folder}/__init__.py", b"")
    return found


def einops() -> dict[str, bytes]:
    files = metadata.files("einops") or []
    return {
        f"site/{path}": Path(path.locate()).read_bytes()
        for path in files
        if path.suffix in {".py", ""} and ".." not in str(path)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in PARTS:
        parser.add_argument(f"--{name}", type=Path, metavar="PATH")
    given = vars(parser.parse_args())
    packed = einops()
    for name in PARTS:
        source = given[name.replace("-", "_")]
        if source is not None:
            packed |= parts_of(name, source)
    OUT.parent.mkdir(exist_ok=True)
    with tarfile.open(OUT, "w:xz") as archive:
        for path in sorted(packed):
            member = tarfile.TarInfo(path)
            member.size = len(packed[path])
            archive.addfile(member, io.BytesIO(packed[path]))
    print(f"{OUT}: {len(packed)} files, {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
