"""Delayed execution: later, at a time, again and again; once at a time, and again if the worker is lost."""

from fencepost.jobs.api import (
    AsyncDead,
    AsyncJobs,
    AsyncTask,
    AsyncTiming,
    DeadJobs,
    Jobs,
    SyncTask,
    SyncTiming,
)
from fencepost.jobs.handles import AsyncJobHandle, DeadJob, JobHandle
from fencepost.jobs.job import Cancel, Job, JobFailed, Retry, Snooze, this_job
from fencepost.jobs.options import Backoff, QueueOptions, TaskOptions
from fencepost.jobs.scripts import Figures, JobStatus
from fencepost.jobs.task import Message
from fencepost.jobs.workers import AsyncWorker, Worker

__all__ = [
    "AsyncDead",
    "AsyncJobHandle",
    "AsyncJobs",
    "AsyncTask",
    "AsyncTiming",
    "AsyncWorker",
    "Backoff",
    "Cancel",
    "DeadJob",
    "DeadJobs",
    "Figures",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "Jobs",
    "Message",
    "QueueOptions",
    "Retry",
    "Snooze",
    "SyncTask",
    "SyncTiming",
    "TaskOptions",
    "Worker",
    "this_job",
]
