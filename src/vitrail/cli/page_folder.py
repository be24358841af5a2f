"""A page that a verb wrote -> the same, linked to the report of the run that its checkpoint lies in."""

from __future__ import annotations

from pathlib import Path


def link_to_report(page: Path, checkpoint: str, title: str) -> Path:
    """The page; with a link to the run's report where there is one."""
    from vitrail.evaluation.seen_images import run_of
    from vitrail.reporting.page_links import PageLink, link_pages

    folder = run_of(checkpoint)
    if folder is not None and (folder / "report.html").is_file():
        link_pages([PageLink(title, page), PageLink("Report of the run", folder / "report.html")], only=page)
    return page
