"""`Run`, where the programme of the bound looks for it."""

from pdplugins.report.ranking import Run

__all__ = ["Run"]
