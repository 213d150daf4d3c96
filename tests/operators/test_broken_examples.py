"""Every example of every operator is refused with one wrong tensor, by an error that states what was expected and got."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from operator_cases import copied, operator_call
from torch import Tensor

from gdn_cuda.operators import examples
from gdn_cuda.operators.examples import Case

# A registered operator sees an undefined tensor before arguments have names: that error has no prefix.
MESSAGE = re.compile(r"(\w+: [\w, ]+: )?expected .+, got .+", re.DOTALL)
CASES = examples.load()


def broken(operator: Any, values: tuple[Any, ...]) -> Iterator[tuple[str, list[Any]]]:
    """Yields (defect, arguments with it)."""
    for i, (argument, x) in enumerate(zip(operator._schema.arguments, values, strict=True)):
        if not isinstance(x, Tensor):
            continue
        wrong: dict[str, Tensor | None] = {"no dimensions": x.new_zeros(())}
        if x.dtype != torch.bool:
            wrong["bool"] = x.bool()
        if sum(isinstance(y, Tensor) for y in values) > 1:
            wrong["another device"] = x.to("meta")
            if str(argument.type) == "Tensor":
                wrong["None"] = None
        for what, y in wrong.items():
            yield f"{argument.name}: {what}", [y if i == j else copied(other) for j, other in enumerate(values)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_wrong_tensor_is_refused(case: Case) -> None:
    operator, values = operator_call(case)
    accepted = []
    for what, arguments in broken(operator, values):
        try:
            operator(*arguments)
        except ValueError as error:
            found = MESSAGE.fullmatch(str(error))
            if not found or not (found[1] or what.endswith(": None")):
                accepted.append(f"{what}: {error}")
        else:
            accepted.append(what)
    assert not accepted
