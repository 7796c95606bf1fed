"""Finds the program that was installed with this package."""

import os
import pathlib
import shutil
import sys
import sysconfig


def program() -> pathlib.Path:
    """Path of the program: PACKETRIG_BIN, or the one of this package's environment, or the first one in PATH."""
    given = os.environ.get("PACKETRIG_BIN")
    if given:
        return pathlib.Path(given)
    directories = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    if hasattr(sysconfig, "get_preferred_scheme"):
        directories.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for directory in directories:
        candidate = pathlib.Path(directory, "packetrig")
        if candidate.is_file():
            return candidate
    found = shutil.which("packetrig")
    if found is None:
        raise FileNotFoundError("the program packetrig is neither beside this Python nor in PATH; set PACKETRIG_BIN to its path")
    return pathlib.Path(found)
