"""A layout inside a notebook: the page of it, in a frame of its own."""

from __future__ import annotations

from html import escape

from rankloom.explain.page import page
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan.job import Job

__all__ = ["layout_html"]

HEIGHT = 760  # pixels


def layout_html(layout: GTPParallelLayout) -> str:
    """HTML for ``_repr_html_``: the page in an iframe, so that its style and script touch nothing else."""
    job = Job(title="layout", program="rankloom", origin="", layout=layout, topology=Topology.regular(layout))
    return (
        f'<iframe srcdoc="{escape(page(job))}" title="a rankloom layout" sandbox="allow-scripts allow-forms"'
        f' style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
    )
