"""Runs read as people read them: one HTML page, and figures for papers. Knows runs on disk only, never torch."""
