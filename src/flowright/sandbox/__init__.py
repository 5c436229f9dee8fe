"""Isolated execution of candidate Python in real CPython.

Programs and solutions that a policy or a large model wrote run in forked children of clean warm
interpreters, never in this process. docs/workflows.md lists what this covers and what it does not.
"""

from flowright.sandbox.names import bound_names, parse_trusted, suite_names
from flowright.sandbox.pool import Sandbox
from flowright.sandbox.programs import IOTest, parse_io_test
from flowright.sandbox.reports import (
    Isolation,
    Limits,
    RunResult,
    SandboxStatus,
    Status,
    TestReport,
    TestResult,
)

__all__ = [
    "IOTest",
    "Isolation",
    "Limits",
    "RunResult",
    "Sandbox",
    "SandboxStatus",
    "Status",
    "TestReport",
    "TestResult",
    "bound_names",
    "parse_io_test",
    "parse_trusted",
    "suite_names",
]
