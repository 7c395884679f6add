"""Attacks on the messages of a run, to see what they show of a site's data."""

from netfleet.privacy.audit.auditor import AuditOptions, audit
from netfleet.privacy.audit.results import Audit, Finding

__all__ = ["Audit", "AuditOptions", "Finding", "audit"]
