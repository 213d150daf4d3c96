"""Pages that are made of signatures, docstrings, parsers and the registry of kernels."""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import os
import pkgutil
from typing import Any

import docstrings
from benchmark_tables import benchmark_tables
from contents import ROOT
from links import relative

import gdn_cuda._C
import gdn_cuda.compat
import gdn_cuda.nn
import gdn_cuda.parallel


def type_page(name: str, documented: Any) -> str:
    if issubclass(documented, enum.Enum):
        items = [f"- `gdn_cuda.{name}.{each.name}` = {each.value}" for each in documented]
    else:
        fields = inspect.get_annotations(documented).items()
        items = [f"- `{field}`: {getattr(kind, '__forward_arg__', kind)}" for field, kind in fields]
    return "\n\n".join([f"# {name}", inspect.getdoc(documented) or "", "\n".join(items)]) + "\n"


def operator_page(name: str, documented: Any) -> str:
    parts = [f"# {name}", code(docstrings.signature(f"gdn_cuda.{name}", documented)), docstrings.markdown(documented, "##")]
    if tables := list(benchmark_tables(name)):
        parts.append("## Benchmarks")
        parts.append("How the figures were made and what the columns mean is on the pages that they come from.")
        for page, title, table in tables:
            parts.append(f"From [{title.replace('`', '')}]({relative(str(page.relative_to(ROOT)), f'operators/{name}.md')}):")
            parts.append(table)
    return "\n\n".join(parts) + "\n"


def entry(name: str, documented: Any, heading: str) -> str:
    text = docstrings.markdown(documented, f"{heading}#")
    return f"{heading} {name}\n\n{code(docstrings.signature(name, documented))}\n\n{text}"


def methods(module: type) -> list[str]:
    found = {name: each for name, each in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_")}
    ours = (name for name, each in found.items() if each.__module__.startswith("gdn_cuda") and each.__doc__)
    has_page = vars(gdn_cuda).values()
    return [name for name in ours if name != "extra_repr" and found[name] not in has_page]


def compat_row(module: Any, name: str) -> str:
    found = getattr(module, name)
    if inspect.isclass(found) and found is getattr(gdn_cuda.nn, name, None):
        return f"- `{name}`: `gdn_cuda.nn.{name}`"
    if inspect.isclass(found):
        return f"\n{entry(name, found, '###')}"
    if not inspect.isfunction(found):
        return f"- `{name}`: a {type(found).__name__} with the keys {', '.join(map(repr, found))}"
    if found is getattr(gdn_cuda, found.__name__, None):
        return f"- `{name}`: `gdn_cuda.{found.__name__}`"
    if name != found.__name__:
        return f"- `{name}`: `{module.__name__}.{found.__name__}`"
    signature = " ".join(docstrings.signature(name, found).split()).replace("( ", "(").replace(", )", ")")
    return f"- `{signature}`: " + " ".join((inspect.getdoc(found) or "").split())


def commands_page() -> str:
    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1"}
    from gdn_cuda.cli import parser

    top = parser()
    commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction)).choices
    parts = ["# The command line", code(top.format_help(), "text")]
    for name, command in commands.items():
        parts += [f"## {name}", code(command.format_help(), "text")]
    return "\n\n".join(parts) + "\n"


def kernels_page() -> str:
    rows = [
        f"| `{each['family']}/{each['name']}` | {each['summary']} | {len(each['configurations'])} | "
        f"{gdn_cuda.runtime.architectures(each['min_capability'], each['max_capability'])} | "
        f"{'yes' if each['uses_cutlass'] else ''} |"
        for each in gdn_cuda._C.kernels()
    ]
    head = ["| kernel | what it does | configurations | architectures | needs CUTLASS |", "|---|---|---|---|---|"]
    return "# Kernels\n\nWhat `python -m gdn_cuda kernels` lists.\n\n" + "\n".join([*head, *rows]) + "\n"


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


# ---- The Python interface beside operators: its pages, by name


def nn_page() -> str:
    parts = [f"# Modules: `gdn_cuda.nn`\n\n{inspect.getdoc(gdn_cuda.nn)}\n"]
    for name, module in docstrings.modules().items():
        parts.append(f"## {name}\n\n{code(docstrings.signature(name, module))}\n\n{docstrings.markdown(module, '###')}")
        parts += [entry(method, getattr(module, method), "###") for method in methods(module)]
    return "\n".join(parts)


def parallel_page() -> str:
    parts = [f"# Several GPUs: `gdn_cuda.parallel`\n\n{inspect.getdoc(gdn_cuda.parallel)}\n"]
    parts += [entry(name, function, "##") for name, function in docstrings.parallel_functions().items()]
    context = gdn_cuda.parallel.Context
    parts.append(f"## parallel.Context\n\n{inspect.getdoc(context)}\n\n{entry('explain', context.explain, '###')}")
    return "\n".join(parts)


def compat_page() -> str:
    parts = [f"# Other libraries' names: `gdn_cuda.compat`\n\n{inspect.getdoc(gdn_cuda.compat)}\n"]
    names = [each.name for each in pkgutil.iter_modules(gdn_cuda.compat.__path__)]
    for module in (importlib.import_module(f"gdn_cuda.compat.{name}") for name in names):
        if hasattr(module, "__all__"):
            parts.append(f"\n## {module.__name__}\n\n{inspect.getdoc(module)}\n")
            parts += [compat_row(module, name) for name in module.__all__]
    return "\n".join(parts) + "\n"


def runtime_page() -> str:
    parts = [f"# Compiling, warm-up and paths\n\n{inspect.getdoc(gdn_cuda)}\n"]
    parts += [entry(name, function, "##") for name, function in docstrings.runtime_functions().items()]
    result = gdn_cuda.runtime.CompileResult
    parts.append(f"## CompileResult\n\n{code(docstrings.signature('CompileResult', result))}\n\n{inspect.getdoc(result)}\n")
    return "\n".join(parts)


def reference_page() -> str:
    reference = gdn_cuda.reference
    parts = [f"# The reference: `gdn_cuda.reference`\n\n{inspect.getdoc(reference)}\n"]
    for name in reference.__all__:
        found = getattr(reference, name)
        summary = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
        parts.append(f"- {'' if inspect.isfunction(found) else 'module '}`gdn_cuda.reference.{name}`: {summary}")
    return "\n".join(parts) + "\n"


PYTHON_PAGES = {
    "api/nn": nn_page,
    "api/parallel": parallel_page,
    "api/compat": compat_page,
    "api/runtime": runtime_page,
    "api/commands": commands_page,
    "api/kernels": kernels_page,
    "api/reference": reference_page,
}
