"""Declares operators in Python, and derives from a declaration the call, the CPU path, fake tensors, gradients and docs."""

from .declare import operator as operator
from .declare import reference_of as reference_of
from .gradients import Differentiable as Differentiable
from .registration import register as register
