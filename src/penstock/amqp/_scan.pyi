"""The compiled twin has the pure one's signature."""

from penstock.amqp.scan import scan_transfers as scan_transfers
