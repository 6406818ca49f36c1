"""Every error that is the user's to mend, as one tree.

PearlError                    1   the run failed
├── UsageError                2   a flag or argument that cannot be honoured
├── FileError                 2   a file that is missing, cut short, damaged or not what it claims
│   ├── GGUFError             2   a GGUF header or split set that is wrong
│   └── CheckpointError       2   a Hugging Face folder or safetensors file that is wrong
├── UnsupportedError          2   well-formed input that pearl does not implement
│   ├── UnsupportedArchitecture
│   ├── UnsupportedQuantType
│   └── UnsupportedTokenizer
├── TemplateError             2   a chat template that is missing, refused or fails
├── MemoryPlanError           2   a byte ceiling below what the run needs
├── ConversionError           1   a conversion that could not finish
│   └── DiskFullError         1
├── WriteFailure              1   a result that could not be written, a disk that is full
└── ReadFailure               1   an expert read that failed while running
The number is the process's exit code. `pearl_cli.__main__` is the only place that catches these.
"""

from collections.abc import Iterable


class PearlError(Exception):
    """A fault with a one-line message: what, where, what is supported or to be done."""

    exit_code = 1


class UsageError(PearlError):
    exit_code = 2


class ContextError(UsageError):
    """A prompt longer than the context."""


class FileError(PearlError):
    exit_code = 2


class GGUFError(FileError):
    pass


class CheckpointError(FileError):
    pass


class UnsupportedError(PearlError):
    exit_code = 2


class UnsupportedArchitecture(UnsupportedError):
    def __init__(self, name: str, supported: Iterable[str], where: str = "", hint: str = "") -> None:
        place, more = f"{where}: " if where else "", f"; {hint}" if hint else ""
        names = ", ".join(sorted(supported))
        super().__init__(f"{place}architecture '{name}' is not supported; supported: {names}{more}")


class UnsupportedQuantType(UnsupportedError):
    def __init__(self, name: str, supported: Iterable[str], where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}quantisation type '{name}' is not supported here; supported: {', '.join(supported)}")


class UnsupportedTokenizer(UnsupportedError):
    pass


class TemplateError(PearlError):
    exit_code = 2


class MemoryPlanError(PearlError):
    exit_code = 2


class ConversionError(PearlError):
    pass


class DiskFullError(ConversionError):
    pass


class WriteFailure(PearlError):
    pass


class ReadFailure(PearlError):
    pass
