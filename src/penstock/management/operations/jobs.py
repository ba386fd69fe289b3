"""Pipeline jobs: what they report of themselves, who is there."""

from __future__ import annotations

from penstock.management.jobs import Job
from penstock.management.operations.base import OperationGroup
from penstock.management.permissions import Action
from penstock.model import names


class JobOperations(OperationGroup):
    def list(self) -> list[Job]:
        self._permit(Action.JOB_READ)
        return self._administration.jobs.list(now_ms=self._now_ms())

    def report(self, job: Job) -> None:
        """What the job tells now replaces what it told before. Its first report is recorded."""
        self._permit(Action.JOB_REPORT, job.name)
        if self._administration.jobs.put(job, now_ms=self._now_ms()):
            self._record(
                Action.JOB_REPORT, f"{names.quote_text(job.name)}: {names.quote_text(job.kind)}"
            )

    def delete(self, name: str) -> None:
        """NotFound."""
        self._permit(Action.JOB_DELETE, name)
        self._administration.jobs.delete(name)
        self._record(Action.JOB_DELETE, names.quote_text(name))
