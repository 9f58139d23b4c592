"""An extension of griffe for the reference: docstrings and defaults as a reader wants them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_PARTS = re.compile(r"\n[ ]*(Cancellation|Durability|Returns|Raises): (?=\S)")
_ARGUMENTS = re.compile(r"\n([ ]*)Args: (\S[^\n]*)\n")


class Docstrings(griffe.Extension):
    """Give one-line parts of a docstring a paragraph of their own, and name the value of a default instead of its constant."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object as it is loaded."""
        if obj.docstring is not None:
            text = _PARTS.sub(r"\n\n**\1:** ", obj.docstring.value)
            obj.docstring.value = _ARGUMENTS.sub(r"\n\n\1**Arguments:** \2\n\n\1Args:\n", text)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the constants in all signatures, now that all modules are known."""
        self._defaults_below(pkg)

    def _defaults_below(self, holder: griffe.Module | griffe.Class) -> None:
        for member in holder.members.values():
            if isinstance(member, griffe.Function):
                for parameter in member.parameters:
                    if isinstance(parameter.default, griffe.ExprName):
                        parameter.default = _value_of(parameter.default, member.module)
            elif isinstance(member, griffe.Module | griffe.Class):
                self._defaults_below(member)


def _value_of(name: griffe.ExprName, module: griffe.Module) -> griffe.Expr | str:
    constant = module.members.get(name.name)
    if isinstance(constant, griffe.Alias):
        try:
            constant = constant.final_target
        except griffe.AliasResolutionError:
            return name
    is_constant = name.name.isupper() and isinstance(constant, griffe.Attribute)
    return constant.value or name if is_constant else name
