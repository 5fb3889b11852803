"""Isolation: what share of its exclusive CPUs' time a pod had for itself, by the minute, and the report of it.

Readings become intervals (cpu_intervals), intervals are booked by the minute (isolation_books), and the books become a
report (isolation_shares, isolation_report, isolation_text, isolation_page): all of that is pure. What reads the
machine: isolation_observer and foreign_scans.
"""
