"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.transfer_frames import frame_events as frame_events
from penstock.kernels._pure.transfer_frames import frame_run as frame_run
