"""The compiled implementation has the signature of the pure-Python one."""

from penstock.amqp.transfer_run import scan_transfers as scan_transfers
