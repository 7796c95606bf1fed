"""Validators and formatters of pScheduler, fetched for the tests.

The files come from the repository that PSCHEDULER_SOURCE names: a checkout or a bare repository of
github.com/perfsonar/pscheduler. They are written into a temporary directory and never into this repository.
"""
import importlib
import importlib.util
import json
import os
import subprocess
import sys

LIBRARY = "python-pscheduler/pscheduler/pscheduler/"
# The modules of the library that validators and formatters need.
MODULES = ["jsonval", "psjson", "exitstatus", "psselect", "iso8601", "pstime", "text"]
TESTS = {
    "latency": ("pscheduler-test-latency/latency/", ["validate.py", "result-format", "latency_utils.py"]),
    "rtt": ("pscheduler-test-rtt/rtt/", ["validate.py", "result-format"]),
}
# Replaces the package's own `__init__`, which imports the whole library. The formatters need more packages of
# PyPI than the validators.
PACKAGE_INIT = """
from .jsonval import json_validate
from .psjson import json_load
from .exitstatus import fail
try:
    from .text import result_format_method
except ImportError:
    pass
"""
FORMATTER_PACKAGES = ["jinja2", "isodate", "dateutil", "pytz", "tzlocal"]


def find_source():
    """Returns the repository of pScheduler, or `None`."""
    source = os.environ.get("PSCHEDULER_SOURCE", "")
    return source if os.path.isdir(source) else None


def find_obstacle(packages=("jsonschema",)):
    """Returns the reason why upstream's files cannot be used; `None` if they can."""
    if find_source() is None:
        return "no repository of pScheduler; set PSCHEDULER_SOURCE"
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return "packages of PyPI are missing: " + ", ".join(missing) if missing else None


def read_file(path):
    """Returns a file of pScheduler's repository."""
    source = find_source()
    in_checkout = os.path.join(source, path)
    if os.path.exists(in_checkout):
        with open(in_checkout, "rb") as file:
            return file.read()
    return subprocess.run(["git", "-C", source, "show", "HEAD:" + path], check=True, timeout=60,
                          stdout=subprocess.PIPE).stdout


class Upstream:
    """pScheduler's files in a directory."""

    def __init__(self, directory):
        self.directory = directory
        files = {"pscheduler/{}.py".format(name): read_file(LIBRARY + name + ".py") for name in MODULES}
        files["pscheduler/__init__.py"] = PACKAGE_INIT.encode()
        for test, (folder, names) in TESTS.items():
            files.update({"{}/{}".format(test, name): read_file(folder + name) for name in names})
        for name, content in files.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)

    def load_validator(self, test):
        """Imports the module with `spec_is_valid` and `result_is_valid` of a test type."""
        if self.directory not in sys.path:
            sys.path.insert(0, self.directory)
        path = os.path.join(self.directory, test, "validate.py")
        spec = importlib.util.spec_from_file_location("pscheduler_{}_validate".format(test), path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def find_invalid(self, value, type_name):
        """Returns why a value is not of a type of pScheduler's dictionary; `None` if it is."""
        validate = importlib.import_module("pscheduler").json_validate
        schema = {"type": "object", "properties": {"value": {"$ref": "#/pScheduler/" + type_name}}}
        valid, message = validate({"value": value}, schema)
        return None if valid else message

    def format_result(self, test, spec, result):
        """Runs `result-format` of a test type and returns the finished process."""
        command = [sys.executable, os.path.join(self.directory, test, "result-format"), "text/plain"]
        return subprocess.run(command, input=json.dumps({"spec": spec, "result": result}), timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                              env=dict(os.environ, PYTHONPATH=self.directory))
