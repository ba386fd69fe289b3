"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.messages import check_section as check_section
from penstock.kernels._pure.messages import inspect_message as inspect_message
from penstock.kernels._pure.messages import read_annotations as read_annotations
from penstock.kernels._pure.messages import read_section_code as read_section_code
from penstock.kernels._pure.messages import rewrite_message as rewrite_message
