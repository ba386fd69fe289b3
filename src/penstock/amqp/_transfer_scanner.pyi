"""The compiled twin has the pure one's signature."""

from penstock.amqp.transfer_run import scan_transfers as scan_transfers
