"""Dotted names of SGLang that several modules hook."""

from __future__ import annotations

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
"""Stands before the name of a method."""
CHECK_ARGUMENTS = "sglang.srt.server_args.ServerArgs.check_server_args"
