"""Programs of C++ peers: compiled once, with -O2, into `build/peers`."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import PeerMissingError
from benchmarks.processes import BUILD

COMPILE_LIMIT = 300
"""Seconds; six on a quiet machine, but it takes 450 MB and may swap."""


@dataclass(frozen=True)
class Compiled:
    """A source file, and what it needs."""

    source: Path
    header: Path
    package: str
    standard: str
    libraries: tuple[str, ...]

    @property
    def program(self) -> Path:
        """Path of the compiled program; the name depends on the source."""
        digest = hashlib.sha256(self.source.read_bytes()).hexdigest()[:12]
        return BUILD / f"{self.source.stem}-{digest}"

    def prepare(self, peer: str) -> None:
        """Compile the program, unless it was compiled before.

        Args:
            peer: the compiler, its version, and the required version.

        Raises:
            PeerMissingError: the peer or the compiler is not installed, or it is another one.
        """
        if self.program.exists():
            return
        compiler = shutil.which("g++")
        if compiler is None or not self.header.exists():
            message = f"not installed: apt install {self.package} g++"
            raise PeerMissingError(message)
        BUILD.mkdir(parents=True, exist_ok=True)
        unfinished = self.program.with_suffix(".unfinished")
        flags = [f"-std={self.standard}", "-O2", str(self.source), "-o", str(unfinished)]
        try:
            subprocess.run(
                [compiler, *flags, *(f"-l{name}" for name in self.libraries), "-pthread"],
                check=True,
                capture_output=True,
                timeout=COMPILE_LIMIT,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            message = f"does not compile with {peer}"
            raise PeerMissingError(message) from error
        unfinished.rename(self.program)
