"""The commit log on the local disk: segment files in one directory, one committer thread.

    DIR/lock, DIR/format.json                                    directory.py
    DIR/<hub id>/<partition index>/
        <base offset, 20 digits>.log        a segment: header and records (segment.py, record.py)
                                .index      derived: sparse index and log mark (index.py)
                                .producers  derived: newest producer stamps (producer_state.py)

Derived files are rebuilt from the records when they are missing or damaged. The file formats, the
recovery tables and the consequences of each failure are in docs/explanation/durability.md.
"""
