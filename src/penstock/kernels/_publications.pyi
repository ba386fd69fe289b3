"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.columns import decode_events as decode_events
from penstock.kernels._pure.producer_batch import append_bodies as append_bodies
from penstock.kernels._pure.producer_batch import append_event as append_event
from penstock.kernels._pure.publications import split_batch as split_batch
from penstock.kernels._pure.publications import split_singles as split_singles
from penstock.kernels._pure.steps import count_metered_events as count_metered_events
from penstock.kernels._pure.transfer_frames import frame_events as frame_events
from penstock.kernels._pure.transfer_frames import frame_run as frame_run
