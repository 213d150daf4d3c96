"""How an operator is declared in Python, and what follows from its declaration."""

from .declare import operator as operator
from .declare import reference_of as reference_of
from .gradients import Differentiable as Differentiable
from .registration import register as register
