"""Pictures for files: which device holds what, and what happened when.

    draw_plan(plan, Path("plan.png"))
    draw_gantt(predicted, Path("gantt.png"), other=measured)

The file's ending says the format (PNG, SVG, PDF).
"""

from weft.report.gantt_picture import draw_gantt
from weft.report.plan_picture import draw_plan

__all__ = ["draw_gantt", "draw_plan"]
