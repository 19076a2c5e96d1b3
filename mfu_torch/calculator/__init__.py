"""Numbers about runs that nobody measured here: planned, published, or known by a log line."""

from mfu_torch.calculator.answer import Answer, Budget
from mfu_torch.calculator.answer_table import render
from mfu_torch.calculator.calculation import calculate
from mfu_torch.calculator.question import InputError, Question, read_question
from mfu_torch.calculator.slips import Slip
from mfu_torch.calculator.solve import solve
from mfu_torch.calculator.spread import Spread, SpreadRow, spread
from mfu_torch.calculator.work import Work, work_of

__all__ = [
    "Answer",
    "Budget",
    "InputError",
    "Question",
    "Slip",
    "Spread",
    "SpreadRow",
    "Work",
    "calculate",
    "read_question",
    "render",
    "solve",
    "spread",
    "work_of",
]
