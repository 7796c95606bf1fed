"""The token in the location of an unmodified script."""

import pathlib

import pytest
import snappi

import rig


def test_the_location_carries_the_token(tmp_path):
    file = tmp_path / "token"
    server = rig.Server(f"--token-file={file}", "--token-always")
    try:
        token = pathlib.Path(file).read_text().strip()
        with_token = server.https.replace("https://", f"https://any:{token}@")
        config = snappi.Config()
        assert snappi.api(location=with_token, verify=False).set_config(config).warnings == []
        with pytest.raises(Exception, match="may not use this server"):
            snappi.api(location=server.https, verify=False).set_config(config)
        assert server.stop() == 0
    finally:
        server.kill()
