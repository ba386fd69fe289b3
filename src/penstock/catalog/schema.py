"""The tables of the SQLite catalog, as the list of steps that led to them.

A step is never edited after a release: `PRAGMA user_version` of a file is how many it has seen.
Names are kept twice: `key` finds (case-folded), `name` shows. `STRICT` refuses other types.
"""

from __future__ import annotations

# "PENS": tells a catalog from any other SQLite file that somebody put in its place.
APPLICATION_ID = 0x50454E53

_STEP_1 = (
    """
    CREATE TABLE namespaces (
        key TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        hosts TEXT NOT NULL, -- JSON array
        tier TEXT NOT NULL,
        throughput_units INTEGER -- NULL: counted, not enforced
    ) STRICT
    """,
    """
    CREATE TABLE hubs (
        namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
        key TEXT NOT NULL,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        partition_count INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        retention_hours INTEGER NOT NULL,
        status TEXT NOT NULL,
        user_metadata TEXT NOT NULL,
        PRIMARY KEY (namespace_key, key)
    ) STRICT
    """,
    """
    CREATE TABLE groups (
        namespace_key TEXT NOT NULL,
        hub_key TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        user_metadata TEXT NOT NULL,
        PRIMARY KEY (namespace_key, hub_key, key),
        FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
            ON DELETE CASCADE
    ) STRICT
    """,
    """
    CREATE TABLE rules (
        namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
        hub_key TEXT, -- NULL: a rule of the namespace
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        rights INTEGER NOT NULL,
        primary_key TEXT NOT NULL,
        secondary_key TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
            ON DELETE CASCADE
    ) STRICT
    """,
    # NULL differs from NULL in a primary key, so the namespace's rules need an expression.
    "CREATE UNIQUE INDEX rules_by_name ON rules (namespace_key, ifnull(hub_key, ''), key)",
)

_STEP_2 = (
    """
    CREATE TABLE revoked_publishers (
        namespace_key TEXT NOT NULL,
        hub_key TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        revoked_ms INTEGER NOT NULL,
        PRIMARY KEY (namespace_key, hub_key, key),
        FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
            ON DELETE CASCADE
    ) STRICT
    """,
)

_STEP_3 = (
    # NULL: auto-inflate is off
    "ALTER TABLE namespaces ADD COLUMN maximum_throughput_units INTEGER",
    """
    CREATE TABLE quota_grants (
        namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        value INTEGER NOT NULL,
        granted_by TEXT NOT NULL,
        granted_ms INTEGER NOT NULL,
        note TEXT NOT NULL,
        PRIMARY KEY (namespace_key, kind)
    ) STRICT
    """,
    """
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at_ms INTEGER NOT NULL,
        who TEXT NOT NULL,
        what TEXT NOT NULL,
        detail TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
    """
    CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
    # No reference to namespaces: what was used is owed when the namespace is gone as well.
    """
    CREATE TABLE usage (
        hour_ms INTEGER NOT NULL,
        namespace_key TEXT NOT NULL,
        run TEXT NOT NULL,
        namespace TEXT NOT NULL,
        units INTEGER NOT NULL,
        ingress_events INTEGER NOT NULL,
        ingress_messages INTEGER NOT NULL,
        ingress_bytes INTEGER NOT NULL,
        egress_bytes INTEGER NOT NULL,
        capture_hours INTEGER NOT NULL,
        PRIMARY KEY (hour_ms, namespace_key, run)
    ) STRICT, WITHOUT ROWID
    """,
)

_STEP_4 = (
    # What the management API keeps beside what the broker needs: a JSON object.
    "ALTER TABLE namespaces ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE hubs ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
)

_STEP_5 = ("ALTER TABLE namespaces ADD COLUMN limits TEXT NOT NULL DEFAULT 'specification'",)

_STEP_6 = (
    # Hubs that were deleted and whose log may still be on disk: written by the transaction that
    # deletes them, also when a namespace takes its hubs along.
    """
    CREATE TABLE deleted_hubs (
        id TEXT PRIMARY KEY
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER hub_deletion_is_recorded AFTER DELETE ON hubs
    BEGIN INSERT OR IGNORE INTO deleted_hubs (id) VALUES (OLD.id); END
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _STEP_1,
    _STEP_2,
    _STEP_3,
    _STEP_4,
    _STEP_5,
    _STEP_6,
)
SUMMED_TABLES = (
    "namespaces",
    "hubs",
    "groups",
    "rules",
    "revoked_publishers",
    "quota_grants",
    "audit",
    "usage",
    "deleted_hubs",
)
