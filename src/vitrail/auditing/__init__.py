"""What would spoil a training or its score, found in the data first: duplicates, leaks, label errors, sizes."""

from vitrail.auditing.audit_results import Audit
from vitrail.auditing.auditor import audit

__all__ = ["Audit", "audit"]
